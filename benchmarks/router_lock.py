"""What a lock on the router costs a request: its own lock, and a server in front of it, against none.

    python benchmarks/router_lock.py [--requests 3000] [--repeat 3]

Two stand-ins for engines answer at once, with as many bytes as 128 tokens take. The cost is CPU time of the processes
that a request goes through between client and engines, so that other work on the machine changes little. The exit
status is 1 when the router's own lock costs more than the limit.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import aiohttp
import psutil
from aiohttp import web

from vime_vllm.command import router_command, router_environment
from vime_vllm.completion import GENERATE_PATH
from vime_vllm.config import VllmConfig
from vime_vllm.http import call, new_session
from vime_vllm.ports import HOST, free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

KEY = "k" * 43
START_DEADLINE_S = 60.0
REQUEST_DEADLINE_S = 60.0
IN_FLIGHT = 64
BODY = {"token_ids": list(range(64)), "sampling_params": {"max_tokens": 128}}
ANSWER = {"choices": [{"token_ids": list(range(128)), "logprobs": [-1.2345678901234] * 128}]}
UNLOCKED = {"vime_vllm.router_server": "vllm_router.launch_router"}


def main() -> int:
    """Measure, print, and compare with the limit."""
    parser = argparse.ArgumentParser(description="CPU time of a request between client and engines.")
    parser.add_argument("--requests", type=int, default=3000, help="of each round")
    parser.add_argument("--repeat", type=int, default=3, help="rounds")
    parser.add_argument("--limit", type=float, default=1.3, help="largest allowed ratio of locked to unlocked")
    parser.add_argument("--front", nargs=2, metavar=("PORT", "URL"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.front:
        web.run_app(front(options.front[1]), host=HOST, port=int(options.front[0]), print=None)
        return 0
    costs = asyncio.run(measure(options.requests, options.repeat))
    for name, microseconds in costs.items():
        print(f"{name:28} {microseconds:7.0f} us CPU a request")
    ratio = costs["the router's own lock"] / costs["no lock"]
    print(f"own lock / no lock: {ratio:.2f} (limit {options.limit})")
    return int(ratio > options.limit)


async def measure(requests: int, repeat: int) -> dict[str, float]:
    """Way to the engines -> median CPU microseconds a request, in turn."""
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(engine()) for _ in range(2)]
        open_url, open_router = await stack.enter_async_context(router(engines, locked=False))
        locked_url, locked_router = await stack.enter_async_context(router(engines, locked=True))
        front_url, front_server = await stack.enter_async_context(
            server([sys.executable, __file__, "--front", "PORT", open_url])
        )
        ways = {
            "no lock": (open_url, [open_router]),
            "the router's own lock": (locked_url, [locked_router]),
            "a server in front": (front_url, [front_server, open_router]),
        }
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(repeat):
            for name, (url, processes) in ways.items():
                before = cpu_seconds(processes)
                await send(url, requests)
                taken[name].append((cpu_seconds(processes) - before) / requests * 1e6)
    return {name: statistics.median(values) for name, values in taken.items()}


async def send(url: str, requests: int) -> None:
    """So many requests, some at a time."""
    turn = asyncio.Semaphore(IN_FLIGHT)

    async def one(session: aiohttp.ClientSession) -> None:
        async with turn:
            await call(session, "POST", url + GENERATE_PATH, deadline_s=REQUEST_DEADLINE_S, body=BODY)

    async with new_session(KEY) as session:
        await asyncio.gather(*(one(session) for _ in range(requests)))


@asynccontextmanager
async def engine() -> AsyncIterator[str]:
    """The URL of what answers like an engine, to whoever has the key."""

    async def answer(request: web.Request) -> web.Response:
        known = request.path == "/health" or request.headers.get("Authorization") == f"Bearer {KEY}"
        return web.json_response(ANSWER) if known else web.Response(status=401)

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, HOST, port).start()
    try:
        yield f"http://{HOST}:{port}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def router(engines: list[str], *, locked: bool) -> AsyncIterator[tuple[str, psutil.Process]]:
    """URL and process of a router as a run starts it, with or without its lock."""
    port = free_port()
    command = router_command(VllmConfig(), engines, port=port, metrics_port=free_port(), deadline_s=REQUEST_DEADLINE_S)
    if not locked:
        command = [UNLOCKED.get(word, word) for word in command]
    async with server(command, port) as started:
        yield started


@asynccontextmanager
async def server(command: list[str], port: int | None = None) -> AsyncIterator[tuple[str, psutil.Process]]:
    """URL and process of a server, once it answers; PORT stands for a free port."""
    port = port or free_port()
    process = subprocess.Popen(
        [str(port) if word == "PORT" else word for word in command],
        env=router_environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    url = f"http://{HOST}:{port}"
    try:
        async with asyncio.timeout(START_DEADLINE_S), new_session(KEY) as session:
            while not await answers(session, url):
                await asyncio.sleep(0.05)
        yield url, psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait()


async def answers(session: aiohttp.ClientSession, url: str) -> bool:
    """Whether something there says 200."""
    try:
        async with session.get(url + "/health") as response:
            return response.status == 200
    except aiohttp.ClientError:
        return False


def front(url: str) -> web.Application:
    """The least that a server in front of the router could be: looks at the key, and carries both bodies on."""

    async def session(application: web.Application) -> AsyncIterator[None]:
        async with new_session(KEY) as application["session"]:
            yield

    async def pass_on(request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != f"Bearer {KEY}":
            return web.Response(status=401)
        body = await request.read()
        headers = {"Content-Type": request.content_type}
        target = url + request.path_qs
        async with request.app["session"].request(request.method, target, data=body, headers=headers) as answer:
            return web.Response(status=answer.status, body=await answer.read(), content_type=answer.content_type)

    application = web.Application()
    application.cleanup_ctx.append(session)
    application.router.add_route("*", "/{path:.*}", pass_on)
    return application


def cpu_seconds(processes: list[psutil.Process]) -> float:
    """CPU time that the processes have used so far."""
    times = [process.cpu_times() for process in processes]
    return sum(time.user + time.system for time in times)


if __name__ == "__main__":
    sys.exit(main())
