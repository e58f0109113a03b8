"""Model folders to the own checkpoints of a training backend, and back."""

from __future__ import annotations

import math
import shutil
import tempfile
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from vime_core.errors import ConfigError, ModelError, PluginError, RunFolderError
from vime_core.loop.convert_together import convert_together
from vime_core.loop.heap import return_freed_memory
from vime_core.models.checkpoint import DTYPE_BYTES
from vime_core.models.export import finish_export, write_parts
from vime_core.models.hf import inspect_model
from vime_core.models.stacked import open_weights
from vime_core.models.tensors import parameters, tensor_shapes
from vime_core.plugins.entries import TrainBackendEntry

if TYPE_CHECKING:
    from collections.abc import Callable

    from vime_core.models.hf import LocalModel
    from vime_core.plugins.interfaces import CheckpointConverter
    from vime_core.plugins.manager import Plugins


MAX_SHARD_BYTES = 64 << 20
"""A file of weights; a process holds at most one in memory, besides a tensor that is larger."""


@dataclass(frozen=True, slots=True)
class Conversion:
    """A conversion that passed all checks; nothing has been written."""

    backend: str
    """Training backend whose checkpoints are meant."""
    factory: str
    """`package.module:Class` of its converter, which only a process that converts imports."""
    model: LocalModel
    """Source of the weights, or what the checkpoint descends from."""
    checkpoint: Path | None
    """Source of the weights when they do not come from the model folder."""
    output: Path
    processes: int

    def converter(self) -> CheckpointConverter:
        """Built anew."""
        module, _, attribute = self.factory.partition(":")
        built: CheckpointConverter = getattr(import_module(module), attribute)(self.model)
        return built

    @property
    def total_bytes(self) -> int:
        """Bytes of all weights, in the dtype of the model folder."""
        tensors = open_weights(self.model.path, self.model.geometry, self.model.tensor_map).tensors
        shapes = tensor_shapes(self.model.geometry, self.model.tensor_map)
        return sum(DTYPE_BYTES[tensors[name].dtype] * math.prod(shape) for name, shape in shapes.items())


def plan_conversion(
    plugins: Plugins,
    source: Path,
    output: Path,
    *,
    model: Path | None = None,
    backend: str | None = None,
    processes: int = 1,
) -> Conversion:
    """Check everything before anything is started or written.

    Args:
        plugins: where families and training backends come from.
        source: a model folder, or with `model` a checkpoint.
        output: new.
        model: folder with configuration and tokenizer of the model that the checkpoint is of.
        backend: whose checkpoints are meant; the only one that converts when None.
        processes: that share the work out.

    Raises:
        RunFolderError: when `output` is there already, or the checkpoint is not.
        PluginError: when no backend converts, or there are several.
        ModelError: when the model folder is incomplete or of no known family.
        ConfigError: when there are fewer parameters than processes, or no processes.
    """
    if output.exists():
        raise RunFolderError(f"{output} exists: give a new folder, or remove it first")
    if processes < 1:
        raise ConfigError(f"--processes {processes} must be 1 or more")
    if model is None and source.is_dir() and not (source / "config.json").exists():
        raise ModelError(
            f"{source} has no config.json, so it is no model folder; if it is a checkpoint, give --model FOLDER, the "
            "model that it descends from"
        )
    conversion = open_conversion(plugins, source, output, model=model, backend=backend)
    count = sum(1 for _ in parameters(conversion.model.geometry, conversion.model.tensor_map))
    if processes > count:
        raise ConfigError(f"--processes {processes} is more than the model's {count} parameters; give at most {count}")
    return replace(conversion, processes=processes)


def open_conversion(
    plugins: Plugins, source: Path, output: Path, *, model: Path | None = None, backend: str | None = None
) -> Conversion:
    """A conversion in one process, whether or not there is an output; see `plan_conversion`."""
    if model is not None and not source.is_dir():
        raise RunFolderError(f"{source} is not a folder; give a checkpoint of the training backend")
    name, factory = _factory(plugins, backend)
    entries = plugins.entries("model")
    families = {name: registered.build() for name, registered in entries.items() if not registered.unavailable()}
    local = inspect_model(model or source, families)
    return Conversion(name, factory, local, None if model is None else source, output.absolute(), processes=1)


def run_conversion(conversion: Conversion, progress: Callable[[int], None]) -> None:
    """Convert; the output is complete or absent. To be called once in a process.

    Args:
        conversion: from `plan_conversion`.
        progress: gets the bytes of what is done, from time to time.

    Raises:
        RunFolderError: when the checkpoint is damaged or of another model, or cannot be written.
        ModelError: when a folder cannot be written.
        TrainerError: when one of several processes died.
    """
    output = conversion.output
    output.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{output.name}.partial-", dir=output.parent))
    unfinished = aside / output.name if conversion.checkpoint is None else aside
    try:
        if conversion.processes == 1:
            write_share(replace(conversion, output=unfinished), progress)
        else:
            convert_together(
                conversion.checkpoint or conversion.model.path,
                unfinished,
                progress,
                model=None if conversion.checkpoint is None else conversion.model.path,
                backend=conversion.backend,
                processes=conversion.processes,
            )
        if conversion.checkpoint is not None:
            finish_export(unfinished, conversion.model)
            unfinished.chmod(0o755)
        unfinished.rename(output)
    finally:
        if aside.exists():
            shutil.rmtree(aside)


def write_share(conversion: Conversion, progress: Callable[[int], None], *, rank: int = 0) -> None:
    """Write what this process has to: all, or its share of torch.distributed's.

    Args:
        conversion: whose output is written to: it must be there for a model folder, and not for a checkpoint.
        progress: gets the bytes of each parameter that is done.
        rank: of this process.
    """
    return_freed_memory()
    if conversion.checkpoint is None:
        conversion.converter().write(conversion.output, progress)
        return
    tensors = conversion.converter().read(conversion.checkpoint, progress)
    write_parts(conversion.output, conversion.model, tensors, max_shard_bytes=MAX_SHARD_BYTES, writer=rank)


def _factory(plugins: Plugins, backend: str | None) -> tuple[str, str]:
    """Name of the training backend, and `package.module:Class` of its converter."""
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
        return backend, converting[backend]
    if len(converting) != 1:
        known = ", ".join(converting) or "none is installed"
        raise PluginError(f"choose the training backend with --train; these convert checkpoints: {known}")
    (name,) = converting
    plugins.select("train", name)
    return name, converting[name]
