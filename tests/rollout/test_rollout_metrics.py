import pytest

from vime_core.errors import RewardError
from vime_core.rollout.metrics import dropped_metrics, evaluation_metrics, part_metrics, rollout_metrics
from vime_core.testing.samples import make_sample
from vime_core.types import Group, Prompt, Verdict, keep_parts


def group(name, *verdicts, lengths=None, masks=None, finish="stop"):
    """A group of one sample for each (score, status)."""
    samples = [
        make_sample(
            3,
            (lengths or [4] * len(verdicts))[i],
            group=name,
            index=i,
            score=score,
            status=status,
            mask=masks[i] if masks else None,
            finish_reason=finish,
        )
        for i, (score, status) in enumerate(verdicts)
    ]
    return Group(name, Prompt(name, (), (1,), ""), samples)


RIGHT, WRONG, LOST = (1.0, "correct"), (0.0, "wrong"), (9.0, "timeout")


def test_the_mean_reward_is_over_judged_samples_zero_included():
    metrics = rollout_metrics([group("a", RIGHT, WRONG, LOST), group("b", (0.25, "wrong"), (9.0, "error"))])
    assert metrics["rollout/raw_reward"] == pytest.approx((1.0 + 0.0 + 0.25) / 3)


def test_without_a_judged_sample_there_is_no_reward():
    metrics = rollout_metrics([group("a", LOST, LOST)])
    assert "rollout/raw_reward" not in metrics
    assert metrics["rollout/verdict_timeout"] == 1.0


def test_verdict_shares_name_every_status_and_sum_to_one():
    metrics = rollout_metrics([group("a", RIGHT, WRONG, (0.0, "unparseable"), LOST, (0.0, "error"))])
    shares = {key: value for key, value in metrics.items() if key.startswith("rollout/verdict_")}
    assert shares == {
        f"rollout/verdict_{s}": pytest.approx(0.2) for s in ("correct", "wrong", "unparseable", "timeout", "error")
    }


def test_zero_variance_is_found_by_equality_of_judged_scores():
    tenth = (0.1, "wrong")
    groups = [
        group("equal fractions", tenth, tenth, tenth),
        group("differ", tenth, (0.1 + 1e-12, "wrong")),
        group("equal but for a lost one", RIGHT, RIGHT, LOST),
        group("one judged", RIGHT, LOST),
        group("none judged", LOST, LOST),
    ]
    assert rollout_metrics(groups)["rollout/zero_std_group_ratio"] == pytest.approx(4 / 5)


def test_lengths_count_the_tokens_that_the_policy_chose():
    masks = [[True, False, False, True], [True] * 6]
    metrics = rollout_metrics([group("a", RIGHT, WRONG, lengths=[4, 6], masks=masks)])
    assert metrics["rollout/response_len_mean"] == 4.0
    assert metrics["rollout/response_len_max"] == 6.0


def test_truncation_follows_the_finish_reason():
    groups = [group("a", RIGHT, finish="length"), group("b", RIGHT), group("c", RIGHT), group("d", RIGHT)]
    assert rollout_metrics(groups)["rollout/truncated_ratio"] == 0.25


def test_no_groups_have_no_metrics():
    assert rollout_metrics([]) == {}


def test_dropped_groups_are_counted_by_reason():
    assert dropped_metrics(["zero std", "too easy!", "zero std"]) == {
        "rollout/dropped_groups": 3.0,
        "rollout/dropped_too_easy_": 1.0,
        "rollout/dropped_zero_std": 2.0,
    }
    assert dropped_metrics([]) == {"rollout/dropped_groups": 0.0}


def test_accuracy_is_a_mean_of_means_over_judged_samples():
    groups = [
        group("a", RIGHT, WRONG, WRONG, LOST),
        group("b", RIGHT, LOST, (0.0, "error"), (0.0, "error")),
        group("c", (0.0, "unparseable"), WRONG, WRONG, WRONG),
        group("d", LOST, LOST, LOST, LOST),
    ]
    metrics = evaluation_metrics("math", groups)
    assert metrics["eval/math/accuracy"] == pytest.approx((1 / 3 + 1 / 1 + 0 / 4) / 3)
    assert metrics["eval/math/failed"] == 8.0


def test_accuracy_counts_verdicts_and_not_scores():
    assert evaluation_metrics("math", [group("a", (-1.0, "correct"), (5.0, "wrong"))])["eval/math/accuracy"] == 0.5


def test_evaluation_tells_lengths_and_truncation():
    groups = [
        group("a", RIGHT, lengths=[3], finish="length"),
        group("b", LOST, lengths=[6]),
        group("c", RIGHT, lengths=[3]),
    ]
    metrics = evaluation_metrics("math", groups)
    assert metrics["eval/math/response_len_mean"] == 4.0
    assert metrics["eval/math/truncated_ratio"] == pytest.approx(1 / 3)


def test_an_evaluation_without_any_verdict_is_an_error():
    with pytest.raises(RewardError, match="evaluation math: none of 2 samples"):
        evaluation_metrics("math", [group("a", LOST, LOST)])


def judged(*parts, index=0):
    """A sample with what several rewards said of it: (name, score, status)."""
    sample = make_sample(3, 4, index=index, score=0.0)
    keep_parts(sample, {name: Verdict(score, status) for name, score, status in parts})
    return sample


def test_each_of_several_rewards_has_its_own_mean_and_shares():
    samples = [
        judged(("math", 1.0, "correct"), ("length", -0.5, "correct")),
        judged(("math", 0.0, "wrong"), ("length", 0.0, "correct")),
        judged(("math", 9.0, "timeout")),
        judged(("code", 0.25, "unparseable"), ("length", -1.0, "correct")),
    ]
    metrics = part_metrics(samples)
    assert {key: value for key, value in metrics.items() if value} == {
        "reward/code/mean": 0.25,
        "reward/code/verdict_unparseable": 1.0,
        "reward/length/mean": -0.5,
        "reward/length/verdict_correct": 1.0,
        "reward/math/mean": 0.5,
        "reward/math/verdict_correct": pytest.approx(1 / 3),
        "reward/math/verdict_wrong": pytest.approx(1 / 3),
        "reward/math/verdict_timeout": pytest.approx(1 / 3),
    }
    assert len(metrics) == 3 * 6
    group_metrics = rollout_metrics([Group("a", Prompt("a", (), (1,), ""), samples)])
    assert metrics.items() <= group_metrics.items()


def test_a_reward_that_never_judged_has_no_mean():
    metrics = part_metrics([judged(("math", 0.0, "error"))])
    assert "reward/math/mean" not in metrics
    assert metrics["reward/math/verdict_error"] == 1.0


def test_a_single_reward_has_no_metrics_of_its_own():
    assert part_metrics([make_sample(3, 4, score=1.0)]) == {}
