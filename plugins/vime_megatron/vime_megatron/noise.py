"""Warnings of Megatron-Core 0.16.1 that say nothing to a user of vime, as patterns for the start of the message.

At import Megatron tells of every optional package that is missing; the local implementations it falls back to are
the ones meant here. Both kinds hold its own use of names that torch or Megatron is about to retire.
"""

from __future__ import annotations

import warnings

AT_IMPORT = (
    r"Transformer Engine and Apex are not installed\. Falling back to ",
    r"Apex is not installed\. Falling back to Torch Norm",
    r"The following imports from `dynamic_context\.py` will be removed",
    r"`torch\.jit\.script(_method)?` is deprecated",
)

IN_CALLS = (
    r"TypedStorage is deprecated",
    r"Please use DTensor instead and we are deprecating ShardedTensor",
    r"`load_state_dict` is deprecated and will be removed",
    r"Warning: tp_group is None, using default tp group",
    r"`torch\.distributed\.reduce_scatter_tensor` is deprecated",
    r"`torch\.distributed\.all_gather_into_tensor` is deprecated",
)


def ignore(patterns: tuple[str, ...]) -> None:
    """Leave these warnings out from now on, within the surrounding `warnings.catch_warnings`."""
    for pattern in patterns:
        warnings.filterwarnings("ignore", message=pattern)
