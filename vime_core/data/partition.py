"""Which samples share a micro-batch, and which rank gets it: pack first, then distribute. Lengths only."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

PADDING_TOKENS = 1
"""Tokens of a micro-batch without samples, which keeps the ranks' counts equal."""


def plan(lengths: Sequence[int], *, max_tokens: int, ranks: int) -> list[list[list[int]]]:
    """Assign every sample to one micro-batch of one rank.

    First-fit decreasing under `max_tokens`, a sample longer than that alone; then the largest micro-batches are
    halved until their number divides by `ranks` (where none can be halved, empty ones are added); then
    `balanced_parts` over the ranks. The result depends on nothing but the arguments.

    Args:
        lengths: [N] tokens of each sample, prompt and response, each at least 1.
        max_tokens: most tokens of a micro-batch.
        ranks: data-parallel size.

    Returns:
        rank -> micro-batch -> rows of `lengths`, ascending. Every row once, the same number of micro-batches on
        every rank, each rank's largest first; an empty list of rows is a padding micro-batch.

    Raises:
        ValueError: for a length, limit or number of ranks below 1.
    """
    if max_tokens < 1 or ranks < 1 or any(length < 1 for length in lengths):
        shortest = min(lengths, default=1)
        raise ValueError(f"lengths, max_tokens, ranks must be at least 1, not {shortest}, {max_tokens}, {ranks}")
    bins = _divide_evenly(_first_fit_decreasing(lengths, max_tokens), lengths, ranks)
    tokens = [_tokens(rows, lengths) for rows in bins]
    parts = balanced_parts(tokens, ranks)
    return [[bins[index] for index in sorted(part, key=lambda i: (-tokens[i], bins[i]))] for part in parts]


def balanced_parts(weights: Sequence[int], parts: int) -> list[list[int]]:
    """Divide weights into parts of equal count and nearly equal sums.

    Karmarkar and Karp's differencing method (UCB/CSD 82/113, 1982) in the balanced form of Michiels, Korst, Aarts
    and van Leeuwen (STACS 2003): the sorted weights are cut into tuples of one weight a part, and the two tuples
    that are least even are joined, heaviest part to lightest, until one is left. Joining never widens the spread,
    so the sums differ by no more than the largest spread inside one of the first tuples.

    Args:
        weights: their number must be a multiple of `parts`.
        parts: number of parts.

    Returns:
        For each part the indices of its weights.

    Raises:
        ValueError: when the weights cannot be shared out in equal numbers.
    """
    if len(weights) % parts:
        raise ValueError(f"{len(weights)} weights cannot be shared out evenly over {parts} parts")
    if not weights:
        return [[] for _ in range(parts)]
    order = sorted(range(len(weights)), key=lambda index: (-weights[index], index))
    heap = [
        _candidate([(weights[index], [index]) for index in order[start : start + parts]])
        for start in range(0, len(order), parts)
    ]
    heapify(heap)
    while len(heap) > 1:
        _, heavy = heappop(heap)
        _, other = heappop(heap)
        joined = [(a + b, left + right) for (a, left), (b, right) in zip(heavy, reversed(other), strict=True)]
        heappush(heap, _candidate(joined))
    return [sorted(indices) for _, indices in heap[0][1]]


def _candidate(parts: list[tuple[int, list[int]]]) -> tuple[int, list[tuple[int, list[int]]]]:
    """Heap item, least even first; indices break ties, so that the order is always defined."""
    parts = sorted(parts, key=lambda part: (-part[0], part[1]))
    return parts[-1][0] - parts[0][0], parts


def _tokens(rows: Sequence[int], lengths: Sequence[int]) -> int:
    return sum(lengths[row] for row in rows) if rows else PADDING_TOKENS


def _first_fit_decreasing(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    bins: list[list[int]] = []
    room: list[int] = []
    for row in sorted(range(len(lengths)), key=lambda row: (-lengths[row], row)):
        place = next((index for index, free in enumerate(room) if lengths[row] <= free), len(bins))
        if place == len(bins):
            bins.append([])
            room.append(max_tokens)
        bins[place].append(row)
        room[place] -= lengths[row]
    return [sorted(rows) for rows in bins]


def _divide_evenly(bins: list[list[int]], lengths: Sequence[int], ranks: int) -> list[list[int]]:
    """Halve the largest bins until their number is a multiple of `ranks`; add empty ones when none is divisible."""
    bins = list(bins)
    while len(bins) % ranks:
        divisible = [rows for rows in bins if len(rows) > 1]
        if not divisible:
            bins.append([])
            continue
        largest = max(divisible, key=lambda rows: _tokens(rows, lengths))
        bins.remove(largest)
        bins.extend(_halve(largest, lengths))
    return bins


def _halve(rows: Sequence[int], lengths: Sequence[int]) -> tuple[list[int], list[int]]:
    """Longest first onto the lighter half."""
    halves: tuple[list[int], list[int]] = ([], [])
    totals = [0, 0]
    for row in sorted(rows, key=lambda row: (-lengths[row], row)):
        lighter = 0 if totals[0] <= totals[1] else 1
        halves[lighter].append(row)
        totals[lighter] += lengths[row]
    return sorted(halves[0]), sorted(halves[1])
