"""What `vime generate` and `vime eval` have in common: whose engines answer."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from vime_core.cli.parser import add_overrides, warn
from vime_core.config.compose import compose
from vime_core.config.validate import families
from vime_core.errors import UserError, VimeError
from vime_core.loop.export import choose_step, export_folder
from vime_core.loop.interrupts import terminated_like_interrupted
from vime_core.models.hf import inspect_model
from vime_core.run.folder import RunFolder

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from vime_core.config.composed import ComposedConfig
    from vime_core.loop.inputs import Inputs

STOP_DEADLINE_S = 30.0


def add_policy(parser: argparse.ArgumentParser) -> None:
    """The arguments that say which weights and engines are used."""
    add_overrides(parser)
    parser.add_argument(
        "--run", type=Path, metavar="RUN", help="use configuration and weights of a run, not those of model.path"
    )
    parser.add_argument("--step", type=int, metavar="N", help="step of the run's checkpoint; the newest when not given")


def compose_policy(options: argparse.Namespace, overrides: Sequence[str]) -> ComposedConfig:
    """The configuration of the run whose engines answer.

    Args:
        options: parsed by a parser with `add_policy`.
        overrides: of the command itself, and what its own arguments are short for; they prevail.

    Raises:
        UserError: when the arguments or the configuration are wrong.
    """
    if options.step is not None and options.run is None:
        raise UserError("--step is the step of a run's checkpoint: add --run RUN")
    if options.run is not None and options.config is not None:
        raise UserError("--run brings its own configuration: leave out --config")
    run = None if options.run is None else RunFolder.find(options.run)
    if run is not None:
        choose_step(run, options.step)
    composed = compose(
        [*options.overrides, *overrides],
        config_file=options.config if run is None else run.config_file,
        config_folder=options.config_dir,
        require_available=False,
    )
    warn(composed.plugins)
    return composed


def with_weights(inputs: Inputs, options: argparse.Namespace) -> Inputs:
    """The inputs with the weights that the arguments ask for: a run's checkpoint is exported first, unless it is.

    Raises:
        VimeError: when it cannot be exported.
    """
    if options.run is None:
        return inputs
    folder = _exported(RunFolder.find(options.run), options.step)
    note(f"weights: {folder}")
    model = inspect_model(folder, families(inputs.composed), inputs.config.model.name)
    return replace(inputs, model=model)


def note(message: str) -> None:
    """What is going on goes to standard error: standard output has the answers alone."""
    print(message, file=sys.stderr, flush=True)


def _exported(run: RunFolder, step: int | None) -> Path:
    step = choose_step(run, step)
    folder = export_folder(run, step)
    if folder.is_dir():
        return folder
    note(f"exporting the checkpoint of step {step}")
    # In a process of its own: loading a checkpoint makes a process a training rank for good.
    command = [sys.executable, "-m", "vime_core.cli", "export", str(run.path), "--step", str(step)]
    with (
        terminated_like_interrupted(),
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process,
    ):
        try:
            _, errors = process.communicate()
        finally:
            _end(process)
    if process.returncode == 0:
        return folder
    told = [line.removeprefix("error: ") for line in errors.splitlines() if line.startswith("error: ")]
    cause = told[-1] if told else f"vime export ended with status {process.returncode}: {errors.strip()[-500:]}"
    raise UserError(cause) if process.returncode == UserError.exit_code else VimeError(cause)


def _end(process: subprocess.Popen[str]) -> None:
    """End a process that is not wanted any more; nothing happens to one that has ended."""
    process.terminate()
    try:
        process.wait(STOP_DEADLINE_S)
    except subprocess.TimeoutExpired:
        process.kill()
