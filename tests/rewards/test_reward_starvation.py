"""A machine without a free core turns no right answer into a timeout, and lets no endless one go on."""

import contextlib
import os
import subprocess
import sys
import time

import pytest

from vime_core.rewards.clock import ActiveClock

COMPETITORS = 10
HOG = "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])}); print(flush=True)\nwhile True: pass"


@pytest.fixture
def busy_core():
    """A core that many other processes want; each in a session of its own, so that none is grouped with another."""
    core = max(os.sched_getaffinity(0))
    with contextlib.ExitStack() as stack:
        for _ in range(COMPETITORS):
            hog = subprocess.Popen(
                [sys.executable, "-c", HOG, str(core)], stdout=subprocess.PIPE, start_new_session=True
            )
            stack.enter_context(hog)
            stack.callback(hog.kill)
            assert hog.stdout is not None
            hog.stdout.readline()
        yield core


def test_waiting_for_a_core_does_not_count(make_pool, ask, busy_core):
    limit = 1.0
    pool = make_pool(("obey", "Obey", {"file": str(busy_core)}), time_limit_s=limit)
    began = time.monotonic()
    [verdict] = ask(pool, "pinned 0.4")
    took = time.monotonic() - began
    assert took > limit, "the core was not busy: this run of the test shows nothing"
    assert verdict.status == "correct", verdict.detail


def test_an_endless_reward_is_late_on_a_busy_core_too(make_pool, ask, busy_core):
    pool = make_pool(("obey", "Obey", {"file": str(busy_core)}), time_limit_s=0.3)
    [verdict] = ask(pool, "pinned")
    assert verdict.status == "timeout"


def test_clock_counts_sleep_and_computation(monkeypatch):
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with child:
        clock = ActiveClock(child.pid)
        time.sleep(0.3)
        assert 0.0 <= clock.elapsed() <= clock.wall()
        assert clock.elapsed() > 0.05, "a process that is blocked is active"
        child.kill()


def test_clock_without_schedstat_is_cpu_time(monkeypatch):
    code = "import time\nwhile time.process_time() < 0.5: pass\nprint(flush=True)\ninput()"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with child:
        clock = ActiveClock(child.pid)
        clock._counts_waiting, clock._start = False, 0.0
        assert child.stdout is not None
        child.stdout.readline()
        first = clock.elapsed()
        time.sleep(0.2)
        assert first == pytest.approx(0.5, abs=0.1)
        assert clock.elapsed() == pytest.approx(first, abs=0.02)
        child.kill()
