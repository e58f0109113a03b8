"""In which order engines sleep, wake, take weights and answer: against plain HTTP servers."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import pytest
from aiohttp import web

from vime_core.accelerators.cpu import CpuAccelerator
from vime_core.types import EngineEndpoint, SamplingParams
from vime_vllm.backend import VllmBackend
from vime_vllm.requests import Requests

PARAMS = SamplingParams(temperature=1.0, top_p=1.0, top_k=-1, max_tokens=1, stop_token_ids=(), seed=None)
SLEEP = "/sleep?level=1&mode=keep"
WEIGHTS, CACHE = "/wake_up?tags=weights", "/wake_up?tags=kv_cache"
PAUSE = "/pause?mode=keep&clear_cache=true"
GENERATE = "/inference/v1/generate"


class Sleeper(CpuAccelerator):
    """An accelerator on which engines can sleep."""

    can_sleep = True


@pytest.fixture
def make_backend(make_context, tmp_path, monkeypatch):
    """A backend whose two engines, and whose router, note what they are asked for; and the notes, by name."""
    monkeypatch.setattr("vime_vllm.requests.parse_completion", lambda answer: answer)
    backends, runners = [], []

    def make(accelerator=Sleeper, **config):
        context = make_context(tmp_path, **config)
        backend = VllmBackend(replace(context, accelerator=accelerator(SimpleNamespace(cores=1))))
        backends.append(backend)
        backend._loop.start()
        notes = {name: [] for name in ("engine-0", "engine-1", "router")}
        served = {name: backend._loop.run(_serve(noted)) for name, noted in notes.items()}
        runners.extend((backend, runner) for runner, _ in served.values())
        urls = {name: url for name, (_, url) in served.items()}
        endpoints = [EngineEndpoint(name=n, url=urls[n], key="k", host="here") for n in ("engine-0", "engine-1")]
        router = SimpleNamespace(url=urls["router"])
        backend._requests = backend._loop.run(_requests(backend._context, router, endpoints))
        return backend, notes

    yield make
    for backend in backends:
        backend._shut()
    for backend, runner in runners:
        backend._loop.run(runner.cleanup())
    for backend in backends:
        backend._loop.close()


async def _requests(context, router, endpoints):
    return Requests(context, router, endpoints)


async def _serve(notes):
    async def answer(request):
        notes.append(request.path_qs)
        return web.json_response({})

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    return runner, f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"


def together(*work):
    async def gathered():
        for each in work:
            await each()

    asyncio.run(gathered())


def test_a_push_finds_weights_awake_and_the_kv_cache_asleep(make_backend):
    """As the loop does it: the trainer has computed, new weights are pushed, samples are drawn."""
    backend, notes = make_backend()
    together(backend.sleep, backend.wake, backend.pause, backend.resume)
    asyncio.run(backend.generate([1], PARAMS))
    assert notes["engine-0"] == notes["engine-1"] == [SLEEP, WEIGHTS, PAUSE, CACHE, "/resume"]
    assert notes["router"] == [GENERATE]


def test_without_a_push_the_first_request_wakes_the_kv_cache_once(make_backend):
    backend, notes = make_backend()
    together(backend.sleep, backend.wake)

    async def requests():
        await asyncio.gather(*(backend.generate([1], PARAMS) for _ in range(5)))

    asyncio.run(requests())
    assert notes["engine-0"] == notes["engine-1"] == [SLEEP, WEIGHTS, CACHE]
    assert notes["router"] == [GENERATE] * 5


@pytest.mark.parametrize(("accelerator", "config"), [(CpuAccelerator, {}), (Sleeper, {"sleep": False})])
def test_engines_that_do_not_sleep_are_asked_for_nothing(make_backend, accelerator, config):
    backend, notes = make_backend(accelerator, **config)
    together(backend.sleep, backend.wake, backend.pause, backend.resume)
    assert notes["engine-0"] == [PAUSE, "/resume"]
