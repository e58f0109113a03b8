"""Training backends, and conversion of their checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    import torch

    from vime_core.models.geometry import ModelGeometry, TensorRule
    from vime_core.plugins.interfaces.algorithm import Algorithm
    from vime_core.plugins.interfaces.devices import Accelerator
    from vime_core.types import Float32Array, MicroBatch, UpdateBatch, UpdateReport


@dataclass(frozen=True, slots=True)
class TrainContext:
    """What a training backend gets on one rank. torch.distributed is initialised before `start`."""

    rank: int
    world_size: int
    config: Any
    """The backend's own config dataclass (a subclass of `TrainConfig`)."""
    model_path: Path
    geometry: ModelGeometry
    tensor_map: Sequence[TensorRule]
    accelerator: Accelerator
    device: str
    """torch device of this rank, e.g. `cpu`, `cuda:0`."""
    temperature: float
    """Sampling temperature; logits are divided by it before every log-softmax."""
    keep_reference: bool
    """Whether `logprobs(..., reference=True)` will be asked for."""
    total_updates: int
    """Optimizer updates in the whole run, for learning-rate schedules."""
    seed: int


class TrainBackend(Protocol):
    """One rank of the trainer. All methods are collective: every rank calls them in the same order."""

    def start(self) -> None:
        """Build the model, load the weights, make the optimizer."""
        ...

    def data_parallel(self) -> tuple[int, int]:
        """(rank, size) among data-parallel ranks; batches are addressed to the data-parallel rank."""
        ...

    def logprobs(self, micro_batches: Sequence[MicroBatch], *, reference: bool = False) -> list[Float32Array]:
        """[T] log-probs for each micro-batch, without gradient, at the context's temperature.

        Free of nan; 0 at the first token of each sequence. Every rank of a data-parallel replica returns the same.
        """
        ...

    def update(self, batch: UpdateBatch, algorithm: Algorithm) -> UpdateReport:
        """One optimizer update."""
        ...

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Hugging Face names and full, contiguous tensors, layer by layer; collective. Valid until the next item."""
        ...

    def save(self, folder: Path) -> None:
        """Write weights, optimizer, schedule and random states; collective."""
        ...

    def load(self, folder: Path) -> None:
        """Read what `save` wrote; collective."""
        ...

    def sleep(self) -> None:
        """Free device memory while engines generate; a no-op where the accelerator cannot."""
        ...

    def wake(self) -> None:
        """Undo `sleep`."""
        ...

    def close(self) -> None:
        """Release what `start` took."""
        ...


class CheckpointConverter(Protocol):
    """Model folders to checkpoints of a training backend and back; built as `CheckpointConverter(model)`.

    `model` is the `LocalModel` that the weights come from, or whose configuration a checkpoint has. Runs in a process
    of its own, or in several: then torch.distributed is initialised, both methods are collective, and each rank passes
    a share of the tensors, one after the other. All shares together are the model, each tensor once.
    """

    def write(self, folder: Path, progress: Callable[[int], None]) -> None:
        """Write the weights of the model folder as a checkpoint, in their dtype.

        Args:
            folder: new; made. Seen by all ranks.
            progress: gets the bytes of each parameter that this rank is done with.
        """
        ...

    def read(self, folder: Path, progress: Callable[[int], None]) -> Iterator[tuple[str, torch.Tensor]]:
        """Hugging Face names and tensors of this rank's share of a checkpoint; valid until the next item.

        Raises:
            RunFolderError: when it is missing, damaged or of another model.
        """
        ...
