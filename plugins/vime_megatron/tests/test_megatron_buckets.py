"""Exports travel in buckets of bounded size, in the order of the tensor map."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from vime_megatron import weights

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize("limit", [1, 20_000, 50_000, 1 << 30])
def test_a_bucket_is_bounded_or_holds_one_parameter(
    limit: int, moe_model: Any, start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "EXPORT_BUCKET_BYTES", limit)
    weight_map = start(moe_model)._weights
    buckets = list(weight_map._buckets())
    sizes = [4 * sum(map(math.prod, item.rule.hf_shapes)) for item in weight_map._items]
    assert [index for bucket in buckets for index in bucket] == list(range(len(sizes)))
    assert all(len(bucket) == 1 or sum(sizes[index] for index in bucket) <= limit for bucket in buckets)
    for bucket, following in pairwise(buckets):
        same = weight_map._owner(weight_map._items[bucket[-1]]) == weight_map._owner(weight_map._items[following[0]])
        assert not same or sum(sizes[index] for index in bucket) + sizes[following[0]] > limit
    for bucket in buckets:
        assert len({weight_map._owner(weight_map._items[index]) for index in bucket}) == 1
