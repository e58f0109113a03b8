"""The training backend `none`: a policy that stays what the model folder holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vime_core.errors import TrainerError
from vime_core.models.stacked import open_weights
from vime_core.models.tensors import tensor_shapes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import torch

    from vime_core.plugins.interfaces import Algorithm, TrainContext
    from vime_core.types import Float32Array, MicroBatch, UpdateBatch, UpdateReport


class FrozenPolicy:
    """Implements `TrainBackend`; holds no model, reads each tensor from disk when it is asked for."""

    def __init__(self, context: TrainContext) -> None:
        self._context = context

    def start(self) -> None:
        """Nothing to build."""

    def data_parallel(self) -> tuple[int, int]:
        """Every rank is a data-parallel one."""
        return self._context.rank, self._context.world_size

    def logprobs(self, micro_batches: Sequence[MicroBatch], *, reference: bool = False) -> list[Float32Array]:
        """There is no model that could give any.

        Raises:
            TrainerError: always.
        """
        raise TrainerError("train=none has no model: nobody may ask it for log-probs")

    def update(self, batch: UpdateBatch, algorithm: Algorithm) -> UpdateReport:
        """There is nothing to update.

        Raises:
            TrainerError: always.
        """
        raise TrainerError("train=none has no model: nobody may ask it for an update")

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The tensors of the model folder, in `train.dtype`, layer by layer."""
        import torch

        context = self._context
        dtype: torch.dtype = getattr(torch, context.config.dtype)
        names = tensor_shapes(context.geometry, context.tensor_map)
        for name, tensor in open_weights(context.model_path, context.geometry, context.tensor_map).load(names):
            yield name, tensor.to(dtype).contiguous()

    def save(self, folder: Path) -> None:
        """Nothing changes, so there is nothing to write."""

    def load(self, folder: Path) -> None:
        """Nothing was written."""

    def sleep(self) -> None:
        """Holds no device memory."""

    def wake(self) -> None:
        """Undo `sleep`."""

    def close(self) -> None:
        """Nothing to release."""
