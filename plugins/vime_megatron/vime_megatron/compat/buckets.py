"""A guard for checkpoints of optimizers whose parameters lie in several buckets, on every device."""

from __future__ import annotations

import functools
from importlib import import_module
from typing import Any

from vime_megatron.compat.guard import Guard, Site

OPTIMIZER = "optimizer.distrib_optimizer"


def _always() -> bool:
    return True


def _install_places_without_padding() -> None:
    owner = import_module(f"megatron.core.{OPTIMIZER}").DistributedOptimizer
    plain = owner.sharded_param_state_fully_reshardable
    if hasattr(plain, "__wrapped__"):
        return

    @functools.wraps(plain)
    def sharded_param_state(self: Any, *args: Any, **kwargs: Any) -> Any:
        places = [buffer.param_index_map for buffer in self.buffers]
        try:
            for buffer in self.buffers:
                buffer.param_index_map = _without_padding(buffer)
            return plain(self, *args, **kwargs)
        finally:
            for buffer, kept in zip(self.buffers, places, strict=True):
                buffer.param_index_map = kept

    owner.sharded_param_state_fully_reshardable = sharded_param_state


def _without_padding(buffer: Any) -> dict[Any, tuple[int, int, int]]:
    """Where each parameter would start and end if the buckets before its own were not padded at their end."""
    shifts = [0]
    for bucket in buffer.buckets:
        shifts.append(shifts[-1] + bucket.grad_data.numel() - bucket.numel_unpadded)
    return {
        parameter: (start - shifts[bucket], end - shifts[bucket], bucket)
        for parameter, (start, end, bucket) in buffer.param_index_map.items()
    }


BUCKET_GUARDS = (
    Guard(
        name="bucket_padding",
        reason="the state of all buckets is put together without their padding, and taken apart as if it were there: "
        "a tied embedding on the last pipeline stage, which has a bucket to itself, would shift all that follows",
        sites=(
            Site(OPTIMIZER, 1118, "offset_in_world_tensors += gbuf_world_numel_unpadded"),
            Site(OPTIMIZER, 1501, "world_tensors[state_key][param_world_start:param_world_end]"),
        ),
        needed=_always,
        install=_install_places_without_padding,
    ),
)
"""Guards for the optimizer's buckets."""
