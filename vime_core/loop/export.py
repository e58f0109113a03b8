"""A checkpoint of a run as a model folder in Hugging Face format."""

from __future__ import annotations

import math
import os
import shutil
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vime_core.config.compose import compose
from vime_core.config.overrides import quoted
from vime_core.config.validate import families
from vime_core.errors import ResourceError, RunFolderError
from vime_core.models.export import export_model
from vime_core.models.hf import inspect_model
from vime_core.models.tensors import tensor_shapes
from vime_core.plugins.interfaces import TrainContext
from vime_core.run.checkpoint import CheckpointStore
from vime_core.run.folder import check_writable
from vime_core.run.resume import config_fingerprint

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vime_core.config.composed import ComposedConfig
    from vime_core.models.hf import LocalModel
    from vime_core.plugins.interfaces import Accelerator, TrainBackend
    from vime_core.run.checkpoint import Checkpoint
    from vime_core.run.folder import RunFolder

TRAINER_FOLDER = "trainer"
"""Within a checkpoint: what `TrainBackend.save` wrote."""

DTYPE_BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True, slots=True)
class Export:
    """An export that passed all checks; nothing has been started or written."""

    composed: ComposedConfig
    """The run's configuration, for one training rank."""
    checkpoint: Checkpoint
    model: LocalModel
    """What the run started from: configuration and tokenizer of the new folder."""
    output: Path


def choose_step(run: RunFolder, step: int | None) -> int:
    """The step of a checkpoint that there is; the newest when None.

    Raises:
        RunFolderError: when there is none; names those there are.
    """
    steps = CheckpointStore(run.checkpoints, keep_last=1).steps() if run.checkpoints.is_dir() else []
    if not steps:
        raise RunFolderError(f"{run.path} holds no checkpoint; a run saves one at its end, and every checkpoint.every")
    if step is not None and step not in steps:
        raise RunFolderError(f"{run.path} holds no checkpoint of step {step}; there are: {', '.join(map(str, steps))}")
    return steps[-1] if step is None else step


def export_folder(run: RunFolder, step: int) -> Path:
    """Where the export of a checkpoint goes when no other place is given."""
    return run.path / "export" / f"step_{step:06d}"


def plan_export(
    run: RunFolder,
    step: int | None,
    output: Path | None,
    *,
    model: Path | None = None,
    accelerator: str | None = None,
) -> Export:
    """Check everything that can be checked before a model is built.

    Args:
        run: the run folder.
        step: the checkpoint's; None takes the newest.
        output: new folder; `export/step_NNNNNN` in the run folder when None.
        model: where the run's model folder is now; where it was when None.
        accelerator: what to build the model on; the run's when None.

    Raises:
        RunFolderError: when the checkpoint is missing or damaged, or the output exists or cannot be made.
        ResourceError: when the disk is too full.
        UserError: when configuration, model folder or components do not fit.
    """
    checkpoint_step = choose_step(run, step)
    output = (output or export_folder(run, checkpoint_step)).absolute()
    if output.exists():
        raise RunFolderError(f"{output} exists: give a new folder with --output, or remove it first")
    check_writable(output)
    composed = compose(_overrides(model, accelerator), config_file=run.config_file, require_available=False)
    for kind in ("train", "accelerator"):
        composed.plugins.select(kind, composed.components[kind].entry.name)
    config = composed.config
    local = inspect_model(Path(config.model.path), families(composed), config.model.name)
    _check_space(output, local, config.train.dtype)
    checkpoint = CheckpointStore(run.checkpoints, keep_last=1).load(checkpoint_step)
    if checkpoint.config_fingerprint != config_fingerprint(run.read_config()):
        raise RunFolderError(
            f"{run.config_file} is not the configuration of {checkpoint.path.name}: it was changed by hand; restore it"
        )
    return Export(composed, checkpoint, local, output)


def run_export(export: Export) -> None:
    """Load the checkpoint into one training rank in this process, and write its weights.

    The rank holds weights and optimizer, about 16 bytes a parameter. The environment of this process becomes that of
    a training rank: call it once, before torch is imported.

    Raises:
        RunFolderError: when the checkpoint is not of this model.
        ModelError: when the folder cannot be written.
    """
    config, components = export.composed.config, export.composed.components
    accelerator: Accelerator = components["accelerator"].build(config.accelerator)
    threads = config.train.threads or (accelerator.device_count() if accelerator.ray_resource == "CPU" else 1)
    os.environ.update(accelerator.child_environment([0], threads))
    with _only_rank(accelerator, threads):
        context = TrainContext(
            rank=0,
            world_size=1,
            config=config.train.one_rank(),
            model_path=export.model.path,
            geometry=export.model.geometry,
            tensor_map=export.model.tensor_map,
            accelerator=accelerator,
            device=accelerator.device(0),
            temperature=config.rollout.temperature,
            keep_reference=False,
            total_updates=max(config.train.steps * config.algorithm.updates_per_rollout, 1),
            seed=config.run.seed,
        )
        backend: TrainBackend = components["train"].build(context)
        try:
            backend.start()
            backend.load(export.checkpoint.path / TRAINER_FOLDER)
            export_model(export.output, export.model, backend.weights())
        finally:
            backend.close()


@contextmanager
def _only_rank(accelerator: Accelerator, threads: int) -> Iterator[None]:
    """torch.distributed with this process alone."""
    accelerator.prepare_process(threads)
    from torch import distributed

    store = distributed.HashStore()
    distributed.init_process_group(accelerator.torch_backend, store=store, rank=0, world_size=1)
    try:
        yield
    finally:
        distributed.destroy_process_group()


def _overrides(model: Path | None, accelerator: str | None) -> list[str]:
    overrides = []
    if model is not None:
        overrides.append(f"model.path={quoted(str(model))}")
    if accelerator is not None:
        overrides.append(f"accelerator={quoted(accelerator)}")
    return overrides


def _check_space(output: Path, model: LocalModel, dtype: str) -> None:
    needed = DTYPE_BYTES[dtype] * sum(map(math.prod, tensor_shapes(model.geometry, model.tensor_map).values()))
    there = next(folder for folder in output.parents if folder.exists())
    free = shutil.disk_usage(there).free
    if free < needed:
        raise ResourceError(
            f"{there} has {free >> 20} MiB free and the weights need {needed >> 20}: make room, or choose another "
            "--output"
        )
