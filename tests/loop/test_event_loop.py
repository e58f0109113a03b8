import asyncio

import pytest

from vime_core.loop.parts import event_loop
from vime_core.rollout.concurrency import run_all


def test_an_interrupt_cancels_what_was_under_way(capsys):
    """As Ctrl-C does it: raised out of the running loop, with requests in flight."""
    ended = []

    async def request():
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append(True)

    async def work():
        asyncio.get_running_loop().call_soon(asyncio.get_running_loop().call_soon, interrupt)
        await run_all([request() for _ in range(50)])

    def interrupt():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), event_loop(10) as events:
        events.run_until_complete(work())
    assert len(ended) == 50
    assert events.is_closed()
    assert capsys.readouterr().err == ""


def test_a_loop_without_work_closes():
    with event_loop(10) as events:
        assert events.run_until_complete(asyncio.sleep(0, "done")) == "done"
    assert events.is_closed()
