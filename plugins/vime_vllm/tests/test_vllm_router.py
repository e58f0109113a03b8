"""The real router in front of plain HTTP servers: which engine gets what, and what a broken engine looks like."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

import pytest
from aiohttp import web

from vime_core.errors import EngineError
from vime_vllm.config import ROUTER_POLICIES
from vime_vllm.http import CallError, call, new_session
from vime_vllm.loop_thread import LoopThread
from vime_vllm.router import Router


@pytest.fixture
def servers():
    """URLs of two servers, and what they were asked."""
    loop = LoopThread("servers")
    loop.start()
    asked = []

    async def serve(index):
        async def answer(request):
            if request.path != "/health":
                asked.append((index, request.method, request.path, request.headers.get("Authorization")))
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

    def start(policy):
        context = make_context(tmp_path, keeper=keeper.address, router_policy=policy)
        router = Router(replace(context, run_id=f"router{len(started)}"))
        router.start(servers[0])
        started.append(router)
        router.wait_ready()
        return router

    yield start
    for router in started:
        router.stop()
        router.stop()


def _ask(router, count, key="secret"):
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
        ("POST", "/inference/v1/generate", "Bearer secret")
    }


def test_round_robin_gives_every_engine_the_same(start):
    counts = Counter(answer["engine"] for answer in _ask(start("round_robin"), 40))
    assert counts == {0: 20, 1: 20}


def test_the_router_adds_no_key_of_its_own(start, servers):
    _, asked, _ = servers
    router = start("round_robin")

    async def pause():
        async with new_session("other") as session:
            await call(session, "POST", f"{router.url}/pause", deadline_s=20, body={})

    asyncio.run(pause())
    assert {path for _, _, path, _ in asked} == {"/pause"}
    assert {key for *_, key in asked} <= {None, "Bearer other"}


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
    with pytest.raises(EngineError, match=r"the router ended with exit status .*router.log"):
        router.check()
