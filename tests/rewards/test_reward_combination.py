"""Several verdicts to one, and the share of failures."""

import itertools
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vime_core.errors import RewardError
from vime_core.rewards.combine import Part, combine
from vime_core.rewards.failures import check_failures, verdict_shares
from vime_core.rewards.routing import NOT_ASKED
from vime_core.testing.samples import make_sample
from vime_core.types import SILENT_STATUSES, VERDICT_STATUSES, Group, Prompt, Verdict


def part(name, status="correct", score=1.0, weight=1.0, extracted=None, detail=""):
    return Part(name, weight, Verdict(score, status, extracted, detail))


def test_a_single_verdict_passes_unchanged():
    assert combine([part("a", "wrong", 0.25, extracted="3", detail="expected 4")]) == Verdict(
        0.25, "wrong", "3", "expected 4"
    )


def test_weighted_sum_and_joined_details():
    verdict = combine([part("a", score=1.0, detail="x"), part("b", score=0.5, weight=-2.0), part("c", detail="y")])
    assert verdict == Verdict(1.0, "correct", None, "a: x; c: y")


@pytest.mark.parametrize("statuses", list(itertools.product(["correct", "wrong", "unparseable"], repeat=3)))
def test_the_worst_status_wins_in_any_order(statuses):
    worst = next(status for status in ("unparseable", "wrong", "correct") if status in statuses)
    assert combine([part(str(i), status) for i, status in enumerate(statuses)]).status == worst


@pytest.mark.parametrize("silent", ["timeout", "error"])
def test_a_silent_status_wins_and_scores_nothing(silent):
    verdict = combine([part("a", "wrong"), part("b", silent, 5.0, detail="why"), part("c", "unparseable")])
    assert verdict == Verdict(0.0, silent, None, "b: why")


def test_the_first_extracted_answer():
    assert combine([part("a"), part("b", extracted="3"), part("c", extracted="4")]).extracted == "3"


NUMBERS = st.floats(-100, 100).map(lambda number: round(number, 3))
PARTS = st.builds(
    part, st.sampled_from("abcdefgh"), st.sampled_from(VERDICT_STATUSES), NUMBERS, NUMBERS, detail=st.just("why")
)


@given(st.lists(PARTS, min_size=1, max_size=6), st.randoms())
def test_score_and_status_follow_from_what_the_rewards_said_whatever_their_order(parts, random):
    """The reference: set operations and exact fractions."""
    said = {part.verdict.status for part in parts}
    shuffled = random.sample(parts, len(parts))
    one, other = combine(parts), combine(shuffled)
    if said & SILENT_STATUSES:
        assert {one.status, other.status} <= said & SILENT_STATUSES
        assert (one.score, other.score) == (0.0, 0.0)
        return
    expected = sum(Fraction(part.weight) * Fraction(part.verdict.score) for part in parts)
    assert one.score == pytest.approx(float(expected), abs=1e-9)
    assert other.score == pytest.approx(float(expected), abs=1e-9)
    worst = "unparseable" if "unparseable" in said else "wrong" if "wrong" in said else "correct"
    assert one.status == other.status == worst


@given(st.lists(PARTS, min_size=1, max_size=4), st.integers(0, 4), NUMBERS)
def test_a_reward_that_was_not_asked_changes_nothing(parts, place, weight):
    with_it = [*parts[:place], Part("other", weight, NOT_ASKED), *parts[place:]]
    one, other = combine(parts), combine(with_it)
    assert (one.status, one.extracted) == (other.status, other.extracted)
    assert one.score == pytest.approx(other.score, abs=1e-9)


def groups_with(statuses):
    made = [make_sample(1, 1, index=index, score=0.0, status=status) for index, status in enumerate(statuses)]
    for sample, status in zip(made, statuses, strict=True):
        sample.verdict = Verdict(0.0, status, None, f"cause of {status}")
    prompt = Prompt("p", (), (1,), "")
    return [Group("a", prompt, made[:2]), Group("b", prompt, made[2:])]


def test_shares_of_each_status():
    groups = groups_with(["correct", "wrong", "correct", "error"])
    samples = [sample for group in groups for sample in group.samples]
    assert verdict_shares(samples) == {"correct": 0.5, "wrong": 0.25, "unparseable": 0.0, "timeout": 0.0, "error": 0.25}
    assert set(verdict_shares([]).values()) == {0.0}


def test_unparseable_is_no_failure():
    check_failures(groups_with(["unparseable"] * 4), 0.0)
    check_failures([], 0.0)


def test_failures_up_to_the_ratio_are_accepted():
    groups = groups_with(["correct", "timeout", "wrong", "error"])
    check_failures(groups, 0.5)
    with pytest.raises(RewardError):
        check_failures(groups, 0.49)


def test_the_commonest_cause_is_named():
    with pytest.raises(RewardError) as caught:
        check_failures(groups_with(["error", "timeout", "timeout", "wrong"]), 0.1)
    assert str(caught.value) == (
        "75% of 4 samples got no verdict, reward_pool.max_failure_ratio is 10%; "
        "the commonest cause (2 samples) is timeout: cause of timeout"
    )
