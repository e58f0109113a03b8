"""The real router in front of plain HTTP servers: which engine gets what, and what a broken engine looks like."""

from __future__ import annotations

import asyncio
import os
import socket
from collections import Counter
from dataclasses import replace

import psutil
import pytest
from aiohttp import web

from vime_core.errors import EngineError
from vime_vllm.command import router_command, router_environment
from vime_vllm.config import ROUTER_POLICIES
from vime_vllm.http import CallError, call, new_session
from vime_vllm.loop_thread import LoopThread
from vime_vllm.ports import HOST, UNREACHABLE
from vime_vllm.router import Router
from vime_vllm.router_server import KEYED_PATH

KEY = "secret"


@pytest.fixture
def servers():
    """URLs of two servers, and what they were asked."""
    loop = LoopThread("servers")
    loop.start()
    asked = []

    async def serve(index):
        async def answer(request):
            key = request.headers.get("Authorization")
            if request.path == KEYED_PATH:
                return web.Response(status=200 if key == f"Bearer {KEY}" else 401)
            if request.path != "/health":
                asked.append((index, request.method, request.path, key))
            return web.json_response({"engine": index})

        application = web.Application()
        application.router.add_route("*", "/{path:.*}", answer)
        runner = web.AppRunner(application, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        return runner, f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"

    runners = [loop.run(serve(index)) for index in range(2)]
    yield [url for _, url in runners], asked, lambda index: loop.run(runners[index][0].cleanup())
    for runner, _ in runners:
        loop.run(runner.cleanup())
    loop.close()


@pytest.fixture
def start(make_context, keeper, servers, tmp_path):
    """Starts a router with a policy."""
    started = []

    def start(policy="round_robin", key=KEY):
        context = make_context(tmp_path, keeper=keeper.address, router_policy=policy)
        router = Router(replace(context, run_id=f"router{len(started)}", run_key=key))
        router.start(servers[0])
        started.append(router)
        router.wait_ready()
        return router

    yield start
    for router in started:
        router.stop()
        router.stop()


def _ask(router, count, key=KEY):
    """Ask `count` times for the same prompt, several at a time: (engine or error) of each."""

    async def ask():
        async with new_session(key) as session:
            body = {"token_ids": [1, 2, 3], "sampling_params": {"max_tokens": 1}}
            url = f"{router.url}/inference/v1/generate"
            calls = (call(session, "POST", url, deadline_s=20, body=body) for _ in range(count))
            return await asyncio.gather(*calls, return_exceptions=True)

    return asyncio.run(ask())


@pytest.mark.parametrize("policy", ROUTER_POLICIES)
def test_every_policy_starts_and_passes_requests_and_their_key_on(start, servers, policy):
    _, asked, _ = servers
    answers = _ask(start(policy), 40)
    assert all(answer["engine"] in (0, 1) for answer in answers)
    assert {(method, path, key) for _, method, path, key in asked} == {
        ("POST", "/inference/v1/generate", f"Bearer {KEY}")
    }


def test_round_robin_gives_every_engine_the_same(start):
    counts = Counter(answer["engine"] for answer in _ask(start("round_robin"), 40))
    assert counts == {0: 20, 1: 20}


def test_a_wrong_key_reaches_no_engine(start, servers):
    _, asked, _ = servers
    errors = _ask(start(), 5, key="other")
    assert {error.status for error in errors} == {401}
    assert asked == []


def test_a_router_whose_key_no_engine_accepts_does_not_start(start):
    with pytest.raises(EngineError, match=r"the router refused the run's key.*router.log"):
        start(key="other")


def test_a_router_without_a_lock_does_not_start(start, monkeypatch):
    command = router_command
    unlocked = {"vime_vllm.router_server": "vllm_router.launch_router"}
    monkeypatch.setattr(
        "vime_vllm.router.router_command", lambda *a, **k: [unlocked.get(word, word) for word in command(*a, **k)]
    )
    with pytest.raises(EngineError, match=r"the router answers without the run's key.*router.log"):
        start()


def test_no_answer_is_asked_for_again_and_says_nothing_of_the_lock(start, monkeypatch):
    status, asked = Router._status, Counter()

    def silent_at_first(router, key):
        asked[key] += 1
        return None if asked[key] == 1 else status(router, key)

    monkeypatch.setattr(Router, "_status", silent_at_first)
    start()
    assert asked[None] == 2


def test_the_routers_metrics_can_be_read_by_nobody(start):
    router = start()
    tree = psutil.Process(router._process.pid).children(recursive=True)
    sockets = [connection for process in tree for connection in process.net_connections()]
    ports = {c.laddr.ip: c.laddr.port for c in sockets if c.status == "LISTEN"}
    assert set(ports) == {HOST, UNREACHABLE}
    for host in (HOST, UNREACHABLE, "0.0.0.0"):
        with pytest.raises(OSError, match=r"refused|unreachable"):
            socket.create_connection((host, ports[UNREACHABLE]), timeout=5)


def test_the_router_gets_no_secrets_and_no_proxy(monkeypatch):
    monkeypatch.setenv("RAY_AUTH_TOKEN", "secret")
    monkeypatch.setenv("https_proxy", "http://proxy:1")
    monkeypatch.setenv("ALL_PROXY", "http://proxy:1")
    environment = router_environment()
    assert not {"RAY_AUTH_TOKEN", "https_proxy", "ALL_PROXY"} & environment.keys()
    assert environment["PATH"] == os.environ["PATH"]


def test_an_engine_that_is_gone_fails_its_requests_at_once_and_unhidden(start, servers):
    _, _, end = servers
    router = start("round_robin")
    end(1)
    answers = _ask(router, 10)
    failed = [answer for answer in answers if isinstance(answer, CallError)]
    assert len(failed) == 5
    assert not any(error.is_refusal for error in failed)


def test_a_router_that_dies_is_named(start, servers):
    router = start("round_robin")
    router.check()
    router._process.stop(5)
    with pytest.raises(EngineError, match=r"the router (was killed by|ended with) .*router.log"):
        router.check()
