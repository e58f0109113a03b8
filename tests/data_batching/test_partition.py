import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vime_core.data.partition import balanced_parts, plan

lengths_of_samples = st.lists(st.integers(1, 60), max_size=40)


def tokens(rows, lengths):
    return sum(lengths[row] for row in rows)


@settings(deadline=None)
@given(lengths=lengths_of_samples, max_tokens=st.integers(1, 80), ranks=st.integers(1, 5))
def test_every_row_goes_to_one_place_and_ranks_get_equal_counts(lengths, max_tokens, ranks):
    planned = plan(lengths, max_tokens=max_tokens, ranks=ranks)
    assert len(planned) == ranks
    assert len({len(micro_batches) for micro_batches in planned}) == 1
    rows = [row for micro_batches in planned for micro_batch in micro_batches for row in micro_batch]
    assert sorted(rows) == list(range(len(lengths)))


@settings(deadline=None)
@given(lengths=lengths_of_samples, max_tokens=st.integers(1, 80), ranks=st.integers(1, 5))
def test_only_a_single_oversize_sample_exceeds_the_limit(lengths, max_tokens, ranks):
    for micro_batches in plan(lengths, max_tokens=max_tokens, ranks=ranks):
        for rows in micro_batches:
            assert tokens(rows, lengths) <= max_tokens or len(rows) == 1


@settings(deadline=None)
@given(lengths=lengths_of_samples, max_tokens=st.integers(1, 80), ranks=st.integers(1, 5))
def test_order_is_fixed_rows_ascend_and_the_largest_comes_first(lengths, max_tokens, ranks):
    planned = plan(lengths, max_tokens=max_tokens, ranks=ranks)
    assert planned == plan(list(lengths), max_tokens=max_tokens, ranks=ranks)
    for micro_batches in planned:
        assert all(rows == sorted(rows) for rows in micro_batches)
        sizes = [tokens(rows, lengths) for rows in micro_batches]
        assert sizes == sorted(sizes, reverse=True)


@settings(deadline=None)
@given(lengths=lengths_of_samples, max_tokens=st.integers(1, 80), ranks=st.integers(1, 5))
def test_padding_is_added_only_where_nothing_can_be_halved(lengths, max_tokens, ranks):
    bins = [rows for micro_batches in plan(lengths, max_tokens=max_tokens, ranks=ranks) for rows in micro_batches]
    if any(not rows for rows in bins):
        assert all(len(rows) <= 1 for rows in bins)
        assert sum(not rows for rows in bins) < ranks


@settings(deadline=None)
@given(lengths=st.lists(st.integers(1, 60), min_size=1, max_size=40), max_tokens=st.integers(1, 80))
def test_one_rank_is_packed_first_fit(lengths, max_tokens):
    """Of any two micro-batches of first-fit, the smaller would not have fitted into the other."""
    (micro_batches,) = plan(lengths, max_tokens=max_tokens, ranks=1)
    for index, rows in enumerate(micro_batches):
        for other in micro_batches[index + 1 :]:
            assert tokens(rows, lengths) + min(lengths[row] for row in other) > max_tokens or (
                tokens(other, lengths) + min(lengths[row] for row in rows) > max_tokens
            )


def test_micro_batches_are_filled_before_they_are_distributed():
    assert plan([5, 5, 5, 5], max_tokens=10, ranks=2) == [[[0, 1]], [[2, 3]]]


def test_the_largest_micro_batch_is_halved_to_make_the_counts_equal():
    """First-fit gives {0, 1, 2} and {3}, and {4, 5, 6}: the first is larger than the last."""
    planned = plan([4, 3, 3, 10, 3, 3, 3], max_tokens=10, ranks=2)
    assert sorted(rows for micro_batches in planned for rows in micro_batches) == [[0], [1, 2], [3], [4, 5, 6]]


def test_fewer_samples_than_ranks_leave_padding_micro_batches():
    planned = plan([7], max_tokens=10, ranks=3)
    assert sorted(planned) == [[[]], [[]], [[0]]]


def test_no_samples_need_no_micro_batches():
    assert plan([], max_tokens=10, ranks=2) == [[], []]


@pytest.mark.parametrize(
    ("lengths", "max_tokens", "ranks"), [([3, 0], 8, 1), ([3], 0, 1), ([3], 8, 0)], ids=["length", "limit", "ranks"]
)
def test_impossible_arguments_are_refused(lengths, max_tokens, ranks):
    with pytest.raises(ValueError, match="must be at least 1"):
        plan(lengths, max_tokens=max_tokens, ranks=ranks)


@settings(deadline=None)
@given(data=st.data(), parts=st.integers(1, 6), each=st.integers(1, 8))
def test_parts_are_equal_in_number_and_within_the_spread_of_one_tuple(data, parts, each):
    weights = data.draw(st.lists(st.integers(1, 10_000), min_size=parts * each, max_size=parts * each))
    shared = balanced_parts(weights, parts)
    assert all(len(part) == each for part in shared)
    assert sorted(index for part in shared for index in part) == list(range(len(weights)))
    sums = [tokens(part, weights) for part in shared]
    ordered = sorted(weights, reverse=True)
    spreads = [ordered[start] - ordered[start + parts - 1] for start in range(0, len(ordered), parts)]
    assert max(sums) - min(sums) <= max(spreads)


@settings(deadline=None)
@given(data=st.data(), parts=st.integers(1, 6), each=st.integers(1, 8))
def test_the_heaviest_part_is_no_heavier_than_dealing_in_turn(data, parts, each):
    weights = data.draw(st.lists(st.integers(1, 10_000), min_size=parts * each, max_size=parts * each))
    heaviest = max(tokens(part, weights) for part in balanced_parts(weights, parts))
    ordered = sorted(weights, reverse=True)
    assert heaviest <= max(sum(ordered[rank::parts]) for rank in range(parts))


def test_differencing_finds_an_even_split_that_greedy_dealing_misses():
    """The pairs differ by 4, 4 and 8, which cancel; heaviest-to-lightest dealing ends at 40 and 32."""
    weights = [20, 16, 15, 11, 9, 1]
    assert [tokens(part, weights) for part in balanced_parts(weights, 2)] == [36, 36]


def test_uneven_numbers_are_refused():
    with pytest.raises(ValueError, match="3 weights cannot be shared out evenly over 2 parts"):
        balanced_parts([1, 2, 3], 2)
