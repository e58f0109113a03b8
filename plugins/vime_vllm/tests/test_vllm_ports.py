"""Ports that somebody else took between their choice and the start of the server."""

from __future__ import annotations

import socket
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from yarl import URL

from vime_core.errors import EngineError, ResourceError
from vime_vllm import ports
from vime_vllm.ports import HOST, free_port, listen
from vime_vllm.router import Router


class Healthy(BaseHTTPRequestHandler):
    """Plays an engine that accepts every key."""

    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        """Say nothing."""


@pytest.fixture
def engine_url():
    with HTTPServer((HOST, 0), Healthy) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://{HOST}:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_router_whose_port_is_taken(make_context, keeper, engine_url, tmp_path):
    router = Router(replace(make_context(tmp_path, keeper=keeper.address), run_id="port", run_key="secret"))
    with socket.create_server((HOST, URL(router.url).port)):
        router.start([engine_url])
        try:
            with pytest.raises(EngineError, match=r"[Aa]ddress (already )?in use") as caught:
                router.wait_ready()
        finally:
            router.stop()
    assert len(str(caught.value).splitlines()) == 1


def test_ports_are_not_those_that_the_kernel_gives_to_others():
    first, last = map(int, ports._EPHEMERAL.read_text().split())
    assert not any(first <= free_port() <= last for _ in range(50))


def test_a_port_that_is_taken_is_not_chosen(tmp_path, monkeypatch):
    with socket.create_server((HOST, free_port())) as server:
        taken = server.getsockname()[1]
        only = tmp_path / "range"
        only.write_text(f"{taken + 1} 60999")
        monkeypatch.setattr(ports, "_EPHEMERAL", only)
        monkeypatch.setattr(ports, "_LOWEST", taken)
        with pytest.raises(ResourceError, match=f"no free port from {taken} to {taken} at {HOST}"):
            free_port()
    assert free_port() == taken


def test_a_port_that_is_taken_meanwhile_is_chosen_anew(monkeypatch):
    with socket.create_server((HOST, 0)) as other:
        ports_to_come = iter([other.getsockname()[1], free_port()])
        monkeypatch.setattr(ports, "free_port", lambda host: next(ports_to_come))
        with listen(HOST) as listener:
            assert listener.getsockname()[0] == HOST
            assert listener.getsockname()[1] != other.getsockname()[1]
