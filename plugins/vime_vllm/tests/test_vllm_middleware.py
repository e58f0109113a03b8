"""The lock, as an ASGI application in front of another."""

from __future__ import annotations

import asyncio

import pytest

from vime_vllm.middleware import RequireKey


@pytest.fixture
def ask(monkeypatch):
    """Sends a scope through the lock: (what the client gets, whether the application was reached)."""
    monkeypatch.setenv("VIME_RUN_KEY", "secret")
    reached = []

    async def application(scope, receive, send):
        reached.append(scope)

    def ask(**scope):
        sent = []

        async def send(message):
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": "/pause", "headers": [], **scope}
        reached.clear()
        asyncio.run(RequireKey(application)(scope, None, send))
        return sent, bool(reached)

    return ask


def _key(value, name=b"authorization"):
    return {"headers": [(b"host", b"x"), (name, value)]}


def test_the_key_opens(ask):
    assert ask(**_key(b"Bearer secret")) == ([], True)


@pytest.mark.parametrize(
    "request_",
    [
        {},
        _key(b"Bearer wrong"),
        _key(b"Bearer secret "),
        _key(b"secret"),
        _key(b"Bearer secre"),
        _key("Bearer sécret".encode()),
        _key(b"Bearer secret", name=b"x-authorization"),
        {"headers": [(b"authorization", b"Bearer secret"), (b"authorization", b"Bearer other")]},
        {"method": "OPTIONS"},
        {"path": "/health"},
        {"method": "HEAD", "path": "/health"},
        {"method": "GET", "path": "/health/"},
        {"method": "GET", "path": "/metrics"},
    ],
)
def test_without_the_key_nothing_is_reached(ask, request_):
    sent, reached = ask(**request_)
    assert not reached
    assert sent[0]["status"] == 401


def test_a_websocket_is_closed(ask):
    sent, reached = ask(type="websocket")
    assert not reached
    assert sent == [{"type": "websocket.close", "code": 1008}]
    assert ask(type="websocket", **_key(b"Bearer secret"))[1]


def test_startup_passes(ask):
    assert ask(type="lifespan")[1]


def test_the_lock_itself_answers_the_routers_probe_and_the_engine_only_whoever_has_the_key(ask):
    sent, reached = ask(method="GET", path="/health")
    assert not reached
    assert sent[0]["status"] == 200
    assert sent[1]["body"] == b""
    assert ask(method="GET", path="/health", **_key(b"Bearer secret")) == ([], True)


def test_an_engine_without_a_key_does_not_start(monkeypatch):
    monkeypatch.delenv("VIME_RUN_KEY", raising=False)
    with pytest.raises(KeyError):
        RequireKey(None)
