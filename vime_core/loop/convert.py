"""Model folders to the own checkpoints of a training backend, and back."""

from __future__ import annotations

import math
import shutil
import tempfile
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from vime_core.errors import PluginError, RunFolderError
from vime_core.loop.heap import return_freed_memory
from vime_core.models.checkpoint import DTYPE_BYTES
from vime_core.models.export import export_model
from vime_core.models.hf import inspect_model
from vime_core.models.stacked import open_weights
from vime_core.models.tensors import tensor_shapes
from vime_core.plugins.entries import TrainBackendEntry

if TYPE_CHECKING:
    from collections.abc import Callable

    from vime_core.models.hf import LocalModel
    from vime_core.plugins.interfaces import CheckpointConverter
    from vime_core.plugins.manager import Plugins


@dataclass(frozen=True, slots=True)
class Conversion:
    """A conversion that passed all checks; nothing has been written."""

    converter: CheckpointConverter
    model: LocalModel
    """Source of the weights, or what the checkpoint descends from."""
    checkpoint: Path | None
    """Source of the weights when they do not come from the model folder."""
    output: Path

    @property
    def total_bytes(self) -> int:
        """Bytes of all weights, in the dtype of the model folder."""
        tensors = open_weights(self.model.path, self.model.geometry, self.model.tensor_map).tensors
        shapes = tensor_shapes(self.model.geometry, self.model.tensor_map)
        return sum(DTYPE_BYTES[tensors[name].dtype] * math.prod(shape) for name, shape in shapes.items())


def plan_conversion(
    plugins: Plugins, source: Path, output: Path, *, model: Path | None = None, backend: str | None = None
) -> Conversion:
    """Check everything before anything is written.

    Args:
        plugins: where families and training backends come from.
        source: a model folder, or with `model` a checkpoint.
        output: new.
        model: folder with configuration and tokenizer of the model that the checkpoint is of.
        backend: whose checkpoints are meant; the only one that converts when None.

    Raises:
        RunFolderError: when `output` is there already, or the checkpoint is not.
        PluginError: when no backend converts, or there are several.
        ModelError: when the model folder is incomplete or of no known family.
    """
    if output.exists():
        raise RunFolderError(f"{output} exists: give a new folder, or remove it first")
    if model is not None and not source.is_dir():
        raise RunFolderError(f"{source} is not a folder; give a checkpoint of the training backend")
    factory = _factory(plugins, backend)
    entries = plugins.entries("model")
    families = {name: registered.build() for name, registered in entries.items() if not registered.unavailable()}
    local = inspect_model(model or source, families)
    module, _, attribute = factory.partition(":")
    converter = getattr(import_module(module), attribute)(local)
    return Conversion(converter, local, None if model is None else source, output.absolute())


def run_conversion(conversion: Conversion, progress: Callable[[int], None]) -> None:
    """Convert; the output is complete or absent. To be called once in a process.

    Args:
        conversion: from `plan_conversion`.
        progress: gets the bytes of each parameter that is done.

    Raises:
        RunFolderError: when the checkpoint is damaged or of another model.
        ModelError: when a folder cannot be written.
    """
    return_freed_memory()
    output = conversion.output
    if conversion.checkpoint is not None:
        tensors = conversion.converter.read(conversion.checkpoint, progress)
        export_model(output, conversion.model, tensors, max_shard_bytes=MAX_SHARD_BYTES)
        return
    output.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{output.name}.partial-", dir=output.parent))
    try:
        conversion.converter.write(aside / output.name, progress)
        (aside / output.name).rename(output)
    finally:
        shutil.rmtree(aside)


MAX_SHARD_BYTES = 64 << 20
"""A file of weights; at most one is held in memory, besides a tensor that is larger."""


def _factory(plugins: Plugins, backend: str | None) -> str:
    converting = {
        name: registered.entry.converter
        for name, registered in plugins.entries("train").items()
        if isinstance(registered.entry, TrainBackendEntry) and registered.entry.converter is not None
    }
    if backend is not None:
        plugins.select("train", backend)
        if backend not in converting:
            known = ", ".join(converting) or "none"
            raise PluginError(f"training backend {backend!r} has no checkpoints to convert; these have: {known}")
        return converting[backend]
    if len(converting) != 1:
        known = ", ".join(converting) or "none is installed"
        raise PluginError(f"choose the training backend with --train; these convert checkpoints: {known}")
    (name,) = converting
    plugins.select("train", name)
    return converting[name]
