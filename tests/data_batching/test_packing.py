from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vime_core.data.batching import attach, build_update, pack, split_updates, unpack
from vime_core.testing.samples import make_sample, make_train_sample
from vime_core.types import TrainSample


@st.composite
def train_samples(draw, *, min_size=1, max_size=12):
    """Samples of several groups; empty responses and masks without a True included."""
    samples = []
    for index in range(draw(st.integers(min_size, max_size))):
        response = draw(st.integers(0, 9))
        mask = draw(st.lists(st.booleans(), min_size=response, max_size=response))
        group = f"g{draw(st.integers(0, 3))}"
        sample = make_sample(draw(st.integers(1, 6)), response, group=group, index=index, mask=mask)
        samples.append(make_train_sample(sample))
    return samples


class TokenCount:
    def denominator(self, mask_lengths):
        return float(mask_lengths.sum())


def build(samples, **options):
    return build_update(samples, TokenCount(), **{"max_tokens": 16, "ranks": 1, **options})


def all_micro_batches(batches):
    return [micro_batch for batch in batches for micro_batch in batch.micro_batches]


limits = st.integers(1, 40)
rank_counts = st.integers(1, 4)
multiples = st.sampled_from([1, 2, 8])


def test_a_packed_micro_batch_is_aligned_at_the_target():
    first = make_train_sample(make_sample(2, 3, index=0, mask=[True, False, True]))
    second = make_train_sample(make_sample(1, 2, index=1))
    batch = pack([first, second], [0, 1], pad_to_multiple=5)

    def joined(a, b):
        return [0, 0, *a, 0, *b, 0, 0]

    assert batch.token_ids.tolist() == [
        *first.sample.prompt_ids,
        *first.sample.response_ids,
        *second.sample.prompt_ids,
        *second.sample.response_ids,
        0,
        0,
    ]
    assert batch.position_ids.tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 0, 1]
    assert batch.cu_seqlens.tolist() == [0, 5, 8, 10]
    assert batch.sample_rows.tolist() == [0, 1, -1]
    assert batch.loss_mask.tolist() == joined([1, 0, 1], [1, 1])
    advantages = joined([first.advantages[0], 0, first.advantages[2]], second.advantages)
    assert batch.advantages.tolist() == np.float32(advantages).tolist()
    logprobs = joined(first.sample.rollout_logprobs, second.sample.rollout_logprobs)
    assert batch.rollout_logprobs.tolist() == np.float32(logprobs).tolist()
    dtypes = {name: getattr(batch, name).dtype for name in ("token_ids", "position_ids", "sample_rows", "cu_seqlens")}
    assert dtypes == {"token_ids": np.int64, "position_ids": np.int64, "sample_rows": np.int64, "cu_seqlens": np.int32}
    assert batch.advantages.dtype == batch.rollout_logprobs.dtype == np.float32
    assert batch.loss_mask.dtype == np.bool_
    assert batch.old_logprobs is None
    assert batch.ref_logprobs is None


@pytest.mark.parametrize("multiple", [1, 4])
def test_a_padding_micro_batch_is_one_masked_sequence(multiple):
    batch = pack([], [], pad_to_multiple=multiple)
    assert batch.token_ids.tolist() == [0] * multiple
    assert batch.cu_seqlens.tolist() == [0, multiple]
    assert batch.sample_rows.tolist() == [-1]
    assert not batch.loss_mask.any()


def test_a_masked_token_may_have_any_advantage():
    sample = make_sample(1, 2, mask=[False, True])
    batch = pack([TrainSample(sample, np.array([np.nan, 0.5]), sample.loss_mask)], [0])
    assert batch.advantages.tolist() == [0.0, 0.0, 0.5]


def test_an_empty_prompt_is_refused():
    with pytest.raises(ValueError, match=r"sample \('group', 0\) has no prompt tokens"):
        pack([make_train_sample(make_sample(0, 3))], [0])


def test_arrays_that_do_not_fit_the_response_are_refused():
    train = make_train_sample(make_sample(2, 3))
    short_logprobs = replace(train.sample, rollout_logprobs=train.sample.rollout_logprobs[:2])
    wrong = {
        "loss_mask": replace(train, loss_mask=train.loss_mask[:2]),
        "advantages": replace(train, advantages=train.advantages[:2]),
        "rollout_logprobs": replace(train, sample=short_logprobs),
    }
    for name, sample in wrong.items():
        with pytest.raises(ValueError, match=rf"{name} has shape \(2,\), its response \(3,\)"):
            pack([sample], [0])


@settings(deadline=None)
@given(samples=train_samples(), max_tokens=limits, ranks=rank_counts, multiple=multiples)
def test_unpack_returns_what_pack_was_given(samples, max_tokens, ranks, multiple):
    batches = build(samples, max_tokens=max_tokens, ranks=ranks, pad_to_multiple=multiple)
    if batches is None:
        assert not any(sample.loss_mask.any() for sample in samples)
        return
    packed = all_micro_batches(batches)
    ids = unpack(packed, [batch.token_ids for batch in packed], samples)
    logprobs = unpack(packed, [batch.rollout_logprobs for batch in packed], samples)
    masks = unpack(packed, [batch.loss_mask for batch in packed], samples)
    for row, sample in enumerate(samples):
        np.testing.assert_array_equal(ids[row], sample.sample.response_ids)
        np.testing.assert_array_equal(logprobs[row], sample.sample.rollout_logprobs)
        np.testing.assert_array_equal(masks[row], sample.loss_mask)
        assert logprobs[row].dtype == np.float32


@settings(deadline=None)
@given(samples=train_samples(), max_tokens=limits, ranks=rank_counts, multiple=multiples)
def test_ranks_share_counts_denominator_and_padding(samples, max_tokens, ranks, multiple):
    batches = build(samples, max_tokens=max_tokens, ranks=ranks, pad_to_multiple=multiple)
    if batches is None:
        return
    assert len(batches) == ranks
    assert len({len(batch.micro_batches) for batch in batches}) == 1
    trained = sum(int(sample.loss_mask.sum()) for sample in samples)
    assert {(batch.denominator, batch.token_count) for batch in batches} == {(float(trained), trained)}
    assert sum(int(batch.loss_mask.sum()) for batch in all_micro_batches(batches)) == trained
    for batch in all_micro_batches(batches):
        length = len(batch.token_ids)
        assert length % multiple == 0
        assert batch.cu_seqlens[-1] == length
        assert length <= max(max_tokens, multiple) or np.sum(batch.sample_rows >= 0) == 1
        assert not batch.loss_mask[batch.cu_seqlens[:-1]].any()


@settings(deadline=None)
@given(samples=train_samples(), max_tokens=limits, ranks=rank_counts)
def test_attached_logprobs_come_back(samples, max_tokens, ranks):
    batches = build(samples, max_tokens=max_tokens, ranks=ranks, pad_to_multiple=4)
    if batches is None:
        return
    old = [np.arange(len(sample.loss_mask), dtype=np.float64) - 100 * row for row, sample in enumerate(samples)]
    ref = [values + 7 for values in old]
    attach(batches, old=old)
    assert all(batch.ref_logprobs is None for batch in all_micro_batches(batches))
    attach(batches, ref=ref)
    packed = all_micro_batches(batches)
    for expected, name in ((old, "old_logprobs"), (ref, "ref_logprobs")):
        back = unpack(packed, [getattr(batch, name) for batch in packed], samples)
        for values, wanted in zip(back, expected, strict=True):
            np.testing.assert_array_equal(values, np.float32(wanted))
    response = sum(len(values) for values in ref)
    assert sum(np.count_nonzero(batch.ref_logprobs) for batch in packed) <= response


def test_attach_refuses_values_that_do_not_cover_the_trained_tokens():
    batches = build([make_train_sample(make_sample(2, 3))])
    for count in (2, 5):
        with pytest.raises(ValueError, match=f"{count} values do not fit the response of sample row 0"):
            attach(batches, old=[np.zeros(count)])


def test_unpack_refuses_missing_repeated_and_misshapen():
    samples = [make_train_sample(make_sample(1, 2, index=index)) for index in range(2)]
    first = pack(samples, [0])
    with pytest.raises(ValueError, match=r"samples in no micro-batch: \[\('group', 1\)\]"):
        unpack([first], [first.token_ids], samples)
    with pytest.raises(ValueError, match=r"sample \('group', 0\) is in two micro-batches"):
        unpack([first, first], [first.token_ids] * 2, samples)
    with pytest.raises(ValueError, match="micro-batch of 3 tokens"):
        unpack([first], [first.token_ids[1:]], samples)


def test_nothing_to_train_on_gives_none():
    assert build([]) is None
    assert build([make_train_sample(make_sample(2, 3, mask=[False] * 3)), make_train_sample(make_sample(2, 0))]) is None


def test_a_zero_denominator_gives_none_and_a_senseless_one_is_refused():
    class Fixed:
        def __init__(self, value):
            self.value = value

        def denominator(self, mask_lengths):
            return self.value

    samples = [make_train_sample(make_sample(2, 3))]
    assert build_update(samples, Fixed(0.0), max_tokens=8, ranks=1) is None
    for value in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="loss denominator"):
            build_update(samples, Fixed(value), max_tokens=8, ranks=1)


@settings(deadline=None)
@given(counts=st.lists(st.integers(1, 4), max_size=9), updates=st.integers(1, 6))
def test_updates_get_whole_groups_in_order(counts, updates):
    samples = [
        make_train_sample(make_sample(1, 1, group=f"g{group}", index=index))
        for group, count in enumerate(counts)
        for index in range(count)
    ]
    shares = split_updates(samples, updates)
    assert len(shares) == updates
    assert [sample.sample.key for share in shares for sample in share] == [sample.sample.key for sample in samples]
    groups = [{sample.sample.group_id for sample in share} for share in shares]
    assert sum(len(share) for share in groups) == len(counts)
    sizes = [len(share) for share in groups]
    assert sizes == sorted(sizes, reverse=True)
    assert max(sizes) - min(sizes) <= 1


def test_a_group_that_is_torn_apart_is_refused():
    samples = [make_train_sample(make_sample(1, 1, group=group)) for group in ("a", "b", "a")]
    with pytest.raises(ValueError, match="group 'a' do not follow each other"):
        split_updates(samples, 2)


def test_updates_must_be_positive():
    with pytest.raises(ValueError, match="at least 1"):
        split_updates([], 0)
