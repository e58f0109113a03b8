"""The reference policy: a copy of the weights that the run started from."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from vime_megatron import compat

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from vime_megatron import mcore


class ReferenceWeights:
    """Host copies of the model's parameter buffers, as they were at construction."""

    def __init__(self, model: mcore.DistributedDataParallel) -> None:
        self._buffers = [buffer.param_data for buffer in (*model.buffers, *model.expert_parallel_buffers)]
        self._reference = _host_copies(self._buffers)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The model is the reference policy within, and bit for bit what it was afterwards."""
        current = _host_copies(self._buffers)
        _write(self._reference, self._buffers)
        try:
            yield
        finally:
            _write(current, self._buffers)


def _host_copies(buffers: list[torch.Tensor]) -> list[torch.Tensor]:
    return [buffer.to(compat.HOST, copy=True) for buffer in buffers]


def _write(values: list[torch.Tensor], buffers: list[torch.Tensor]) -> None:
    for value, buffer in zip(values, buffers, strict=True):
        buffer.copy_(value)
