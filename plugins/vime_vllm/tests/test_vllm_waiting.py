"""The event loop's thread, and waits that a death ends."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from vime_core.errors import EngineError
from vime_vllm.loop_thread import LoopThread
from vime_vllm.watch import DeathWatch


@pytest.fixture
def loop():
    loop = LoopThread("test")
    loop.start()
    yield loop
    loop.close()
    loop.close()


async def _thread():
    return threading.current_thread().name


async def _fail():
    raise ArithmeticError("inside")


def test_work_runs_in_the_thread_for_any_caller(loop):
    assert loop.run(_thread()) == "test"
    assert asyncio.run(loop.call(_thread())) == "test"
    with pytest.raises(ArithmeticError, match="inside"):
        loop.run(_fail())
    with pytest.raises(ArithmeticError, match="inside"):
        asyncio.run(loop.call(_fail()))


def test_a_caller_that_blocks_its_own_loop_delays_nothing(loop):
    async def busy():
        answer = asyncio.ensure_future(loop.call(_clock()))
        await asyncio.sleep(0)
        time.sleep(0.5)
        return await answer

    async def _clock():
        await asyncio.sleep(0.01)
        return time.monotonic()

    begin = time.monotonic()
    assert asyncio.run(busy()) - begin < 0.5


def test_cancelling_the_caller_cancels_the_work(loop):
    cancelled = threading.Event()

    async def work():
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async def caller():
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(loop.call(work()), 0.1)

    asyncio.run(caller())
    assert cancelled.wait(30)


def test_closing_cancels_what_runs():
    loop = LoopThread("closing")
    loop.start()
    future = loop.submit(asyncio.sleep(60))
    loop.close()
    assert future.cancelled()


def test_a_loop_that_never_started_can_be_closed():
    LoopThread("idle").close()


def test_a_death_ends_every_wait_with_the_first_report():
    async def scenario():
        watch = DeathWatch()
        waits = [asyncio.ensure_future(watch.guard(asyncio.sleep(60))) for _ in range(3)]
        await asyncio.sleep(0)
        watch.check()
        watch.report("engine-0 died")
        watch.report("the router died")
        errors = await asyncio.gather(*waits, return_exceptions=True)
        assert [str(error) for error in errors] == ["engine-0 died"] * 3
        assert len({id(error) for error in errors}) == 3
        with pytest.raises(EngineError, match="engine-0 died"):
            watch.check()
        with pytest.raises(EngineError, match="engine-0 died"):
            await watch.guard(asyncio.sleep(60))

    asyncio.run(scenario())


def test_results_and_errors_pass_while_all_live():
    async def scenario():
        watch = DeathWatch()
        assert await watch.guard(asyncio.sleep(0, "done")) == "done"
        with pytest.raises(ArithmeticError):
            await watch.guard(_fail())
        await watch.wait(0.01)

    asyncio.run(scenario())


def test_cancelling_a_guarded_wait_cancels_the_work():
    async def scenario():
        watch = DeathWatch()
        seen = []

        async def work():
            try:
                await asyncio.sleep(60)
            finally:
                seen.append("ended")

        wait = asyncio.ensure_future(watch.guard(work()))
        await asyncio.sleep(0.01)
        wait.cancel()
        with pytest.raises(asyncio.CancelledError):
            await wait
        await asyncio.sleep(0.01)
        assert seen == ["ended"]

    asyncio.run(scenario())
