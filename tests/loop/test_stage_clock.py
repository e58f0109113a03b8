"""Times of stages, on a clock that the test turns."""

from types import SimpleNamespace

import pytest

from vime_core.loop import clock as clock_module
from vime_core.loop.clock import StageClock


@pytest.fixture
def hands(monkeypatch):
    """`hands.now` is the time."""
    hands = SimpleNamespace(now=100.0)
    monkeypatch.setattr(clock_module, "time", SimpleNamespace(perf_counter=lambda: hands.now))
    return hands


def test_stages_and_what_lies_between_add_up(hands):
    clock = StageClock()
    hands.now += 1
    with clock.stage("rollout"):
        hands.now += 2
    hands.now += 4
    with clock.stage("update"):
        hands.now += 8
    with clock.stage("rollout"):
        hands.now += 16
    assert clock.lap() == {
        "perf/other_time_s": 5,
        "perf/rollout_time_s": 18,
        "perf/update_time_s": 8,
        "perf/step_time_s": 31,
    }


def test_a_stage_within_another_interrupts_it(hands):
    clock = StageClock()
    with clock.stage("sync"):
        hands.now += 1
        with clock.stage("switch"):
            hands.now += 2
            with clock.stage("sync"):
                hands.now += 4
        hands.now += 8
    lap = clock.lap()
    assert (lap["perf/sync_time_s"], lap["perf/switch_time_s"], lap["perf/step_time_s"]) == (13, 2, 15)


def test_a_stage_that_fails_is_counted_and_left(hands):
    clock = StageClock()

    def fail():
        with clock.stage("update"):
            hands.now += 1
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        fail()
    hands.now += 2
    lap = clock.lap()
    assert (lap["perf/update_time_s"], lap["perf/other_time_s"]) == (1, 2)


def test_a_lap_within_a_stage_splits_it(hands):
    clock = StageClock()
    with clock.stage("report"):
        hands.now += 1
        first = clock.lap()
        hands.now += 2
    second = clock.lap()
    assert (first["perf/report_time_s"], first["perf/step_time_s"]) == (1, 1)
    assert (second["perf/report_time_s"], second["perf/step_time_s"]) == (2, 2)


def test_time_can_be_counted_as_that_of_another_stage(hands):
    clock = StageClock()
    with clock.stage("rollout"):
        hands.now += 5
    clock.move(2, source="rollout", target="score")
    lap = clock.lap()
    assert (lap["perf/rollout_time_s"], lap["perf/score_time_s"], lap["perf/step_time_s"]) == (3, 2, 5)


def test_starts_are_told(hands):
    told = []
    clock = StageClock(told.append)
    with clock.stage("sync"), clock.stage("probe"):
        pass
    assert told == ["sync", "probe"]
