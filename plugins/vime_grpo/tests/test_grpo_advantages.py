import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vime_core.errors import RewardError
from vime_core.testing.samples import make_sample
from vime_core.types import Group, Prompt
from vime_grpo.config import GRPOConfig
from vime_grpo.grpo import GRPO

tenths = st.integers(-30, 30).map(lambda value: value / 10)


def group_of(samples):
    group_id = samples[0].group_id
    prompt = Prompt(id=group_id, messages=(), token_ids=(1,), label="")
    return Group(id=group_id, prompt=prompt, samples=samples)


def scored(scores, group="g"):
    return group_of([make_sample(2, 3, group=group, index=i, score=score) for i, score in enumerate(scores)])


def advantages_of(groups, **options):
    """Sample key -> its advantages."""
    return {train.sample.key: train.advantages for train in GRPO(GRPOConfig(**options)).advantages(groups)}


def reference(scores, *, normalize_std=True):
    """The published formula, with the exact rational arithmetic of `statistics`."""
    if len(scores) < 2 or len(set(scores)) == 1:
        return [0.0] * len(scores)
    mean = statistics.mean(scores)
    scale = statistics.stdev(scores) + 1e-6 if normalize_std else 1.0
    return [(score - mean) / scale for score in scores]


@settings(deadline=None)
@given(scores=st.lists(st.lists(tenths, min_size=1, max_size=16), min_size=1, max_size=4), normalize_std=st.booleans())
def test_advantages_equal_the_formula(scores, normalize_std):
    groups = [scored(values, group=f"g{index}") for index, values in enumerate(scores)]
    found = advantages_of(groups, normalize_std=normalize_std)
    assert list(found) == [sample.key for group in groups for sample in group.samples]
    for group, values in zip(groups, scores, strict=True):
        for sample, expected in zip(group.samples, reference(values, normalize_std=normalize_std), strict=True):
            assert found[sample.key].dtype == np.float64
            assert found[sample.key].shape == (3,)
            np.testing.assert_allclose(found[sample.key], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("normalize_std", [True, False])
@pytest.mark.parametrize("score", [0.0, 0.1, 0.6, 1.0, 1.1, -0.7, 1 / 3, 1e6 + 0.1])
def test_equal_scores_give_exactly_zero(score, normalize_std):
    for size in range(1, 65):
        found = advantages_of([scored([score] * size)], normalize_std=normalize_std)
        assert len(found) == size
        assert all((values == 0.0).all() for values in found.values())


def test_a_score_of_zero_is_a_score():
    found = advantages_of([scored([0.0, 1.0])])
    np.testing.assert_allclose(found["g", 0], -found["g", 1], rtol=1e-15)
    assert found["g", 0][0] < -0.7


@pytest.mark.parametrize("status", ["timeout", "error"])
def test_a_silent_verdict_enters_neither_baseline_nor_loss(status):
    silent = make_sample(2, 3, group="g", index=2, score=0.0, status=status)
    judged = scored([1.0, 0.5])
    assert advantages_of([group_of([*judged.samples, silent])]).keys() == {("g", 0), ("g", 1)}
    for key, values in advantages_of([group_of([*judged.samples, silent])]).items():
        np.testing.assert_array_equal(values, advantages_of([judged])[key])


def test_an_unparseable_sample_is_judged_and_an_unscored_one_is_not():
    unparseable = make_sample(2, 3, index=0, score=0.0, status="unparseable")
    correct = make_sample(2, 3, index=1, score=1.0)
    unscored = make_sample(2, 3, index=2)
    found = advantages_of([group_of([unparseable, correct, unscored])])
    assert found.keys() == {("group", 0), ("group", 1)}
    assert found["group", 0][0] < 0 < found["group", 1][0]


def test_one_judged_sample_gets_zero():
    silent = make_sample(2, 3, index=0, score=0.0, status="error")
    lone = make_sample(2, 3, index=1, score=1.0)
    (values,) = advantages_of([group_of([silent, lone])]).values()
    assert (values == 0.0).all()


def test_a_sample_in_which_the_policy_chose_nothing_moves_no_baseline():
    empty = make_sample(2, 0, index=0, score=0.0)
    masked = make_sample(2, 3, index=1, score=0.0, mask=[False] * 3)
    pair = [make_sample(2, 3, index=2, score=1.0), make_sample(2, 3, index=3, score=0.5)]
    found = advantages_of([group_of([empty, masked, *pair])])
    assert found.keys() == {("group", 2), ("group", 3)}
    np.testing.assert_array_equal(found["group", 2], advantages_of([group_of(pair)])["group", 2])


def test_the_baseline_is_by_group_id_not_by_position():
    first, second = scored([1.0, 0.0, 0.0], group="a"), scored([0.3, 0.9], group="b")
    found = advantages_of([first, second])
    for group in (first, second):
        alone = advantages_of([group])
        for key, values in alone.items():
            np.testing.assert_array_equal(found[key], values)


def test_truncated_samples_stay_in_the_baseline():
    samples = scored([1.0, 0.0, 0.0]).samples
    samples[2].finish_reason = "length"
    kept = advantages_of([group_of(samples)])
    masked = advantages_of([group_of(samples)], mask_truncated=True)
    assert masked.keys() == {("g", 0), ("g", 1)}
    for key, values in masked.items():
        np.testing.assert_array_equal(values, kept[key])


def test_groups_without_variance_are_dropped_on_request():
    groups = [scored([0.1, 0.1], group="same"), scored([0.1, 0.2], group="other"), scored([0.1], group="lone")]
    assert {group for group, _ in advantages_of(groups)} == {"same", "other", "lone"}
    assert {group for group, _ in advantages_of(groups, drop_zero_variance=True)} == {"other"}


@pytest.mark.parametrize("score", [float("nan"), float("inf")])
def test_a_score_that_is_no_number_is_an_error(score):
    with pytest.raises(RewardError, match="sample 1 of group g has score"):
        advantages_of([scored([0.0, score])])


def test_the_loss_mask_is_the_samples_own():
    sample = make_sample(2, 3, score=1.0, mask=[True, False, True])
    (train,) = GRPO(GRPOConfig()).advantages([group_of([sample])])
    assert train.loss_mask.tolist() == [True, False, True]
