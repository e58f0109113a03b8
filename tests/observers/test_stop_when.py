import pytest

from vime_core.errors import ConfigError
from vime_core.observers.config import StopWhenConfig
from vime_core.observers.stop_when import StopWhen

REWARD = "rollout/raw_reward"


def reasons(values, metric=REWARD, **settings):
    """What it says of steps with these values; None stands for a step without the metric."""
    observer = StopWhen(StopWhenConfig(metric=metric, **settings))
    rows = [{"train/loss": 0.0} | ({} if value is None else {metric: value}) for value in values]
    return [observer.step_finished(step, row) for step, row in enumerate(rows, start=1)]


def test_by_default_it_ends_a_run_that_has_solved_everything():
    assert reasons([0.5, 0.999, 1.0]) == [None, None, "rollout/raw_reward is 1, above 1"]


def test_below_a_threshold():
    assert reasons([0.3, 0.1], direction="below", threshold=0.2) == [None, "rollout/raw_reward is 0.1, below 0.2"]


def test_patience_counts_steps_in_a_row_that_have_the_metric():
    values = [1.0, 0.5, 1.0, None, 1.0, 1.0]
    ended = [reason is not None for reason in reasons(values, patience=3)]
    assert ended == [False, False, False, False, False, True]


def test_nan_is_past_nothing():
    assert reasons([float("nan")], threshold=0.0) == reasons([float("nan")], direction="below") == [None]


def test_a_metric_that_only_some_steps_have_is_waited_for():
    assert reasons([None, None], metric="eval/gsm8k/accuracy") == [None, None]


def test_a_misspelt_metric_is_told_at_the_first_step():
    with pytest.raises(ConfigError) as caught:
        reasons([None], metric="train/los")
    assert str(caught.value) == (
        "observers.stop_when.metric=train/los: there is no such metric; did you mean train/loss?"
    )
    with pytest.raises(ConfigError, match=r"docs/reference/metrics\.md lists them"):
        reasons([None], metric="x")
