import asyncio
import signal
import threading
import time

import pytest

from vime_core.cluster import vigil as vigil_module
from vime_core.cluster.calls import gather
from vime_core.cluster.vigil import vigil
from vime_core.errors import DataError, EngineError, SyncError


class Part:
    """Alive until it is told to be dead."""

    def __init__(self):
        self.dead = threading.Event()
        self.asked = 0

    def check(self):
        self.asked += 1
        if self.dead.is_set():
            raise EngineError("engine-0 was killed by SIGKILL")


@pytest.fixture
def part():
    return Part()


def dies_soon(part):
    threading.Timer(0.2, part.dead.set).start()


def wait_in_select():
    threading.Event().wait(60)


def wait_in_an_event_loop():
    asyncio.run(asyncio.sleep(60))


@pytest.mark.parametrize("wait", [wait_in_select, wait_in_an_event_loop, lambda: time.sleep(60)])
def test_a_death_interrupts_whatever_the_driver_waits_for(part, wait):
    dies_soon(part)
    with pytest.raises(EngineError, match="engine-0 was killed by SIGKILL"), vigil([part.check]):
        wait()


def test_an_error_that_was_swallowed_is_raised_again(part, monkeypatch):
    monkeypatch.setattr(vigil_module, "INSIST_S", 0.1)
    swallowed = []

    def wait():
        try:
            time.sleep(60)
        except KeyboardInterrupt as interrupt:
            swallowed.append(interrupt)
        time.sleep(60)

    part.dead.set()
    with pytest.raises(EngineError), vigil([part.check]):
        wait()
    assert len(swallowed) == 1


def test_a_consequence_is_told_as_the_death_that_caused_it(part):
    dies_soon(part)
    with pytest.raises(EngineError, match="was killed by SIGKILL") as raised, vigil([part.check]):
        raise SyncError("weight push: engine-0 failed: the connection broke")
    assert isinstance(raised.value.__cause__, SyncError)


def test_an_error_with_no_death_behind_it_stays(part, monkeypatch):
    monkeypatch.setattr(vigil_module, "PATIENCE_S", 0.1)
    with pytest.raises(SyncError, match="checksum"), vigil([part.check]):
        raise SyncError("checksum")


def test_an_error_that_no_death_explains_does_not_wait_for_one(part):
    asked = part.asked
    with pytest.raises(DataError), vigil([part.check]):
        raise DataError("row 3")
    assert part.asked <= asked + 1


def test_a_death_interrupts_a_wait_for_ray(part, ray_runtime):
    import ray

    class Rank:
        def update(self):
            time.sleep(600)

    rank = ray.remote(Rank).options(num_cpus=0).remote()
    dies_soon(part)
    with pytest.raises(EngineError, match="was killed by SIGKILL"), vigil([part.check]):
        gather([rank.update.remote()], ["rank 0"], what="update", deadline_s=600)
    ray.kill(rank)


def test_an_inner_block_learns_the_cause_too(part):
    def run(watch):
        with pytest.raises(EngineError), watch.first_cause():
            time.sleep(60)

    dies_soon(part)
    with vigil([part.check]) as watch:
        run(watch)


def test_ctrl_c_stays_ctrl_c(part):
    with pytest.raises(KeyboardInterrupt), vigil([part.check]):
        signal.raise_signal(signal.SIGINT)


def test_all_is_as_before_afterwards(part):
    before = signal.getsignal(vigil_module.SIGNAL)
    with vigil([part.check]):
        assert signal.getsignal(vigil_module.SIGNAL) != before
    assert signal.getsignal(vigil_module.SIGNAL) == before
    assert "vigil" not in {thread.name for thread in threading.enumerate()}


def test_a_check_that_fails_in_an_unforeseen_way_ends_the_wait_too():
    def broken():
        raise ArithmeticError("bug")

    with pytest.raises(ArithmeticError, match="bug"), vigil([broken]):
        time.sleep(60)
