"""Weights & Biases."""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING, Any, cast

from vime_core.errors import ConfigError
from vime_core.run.atomic import write_text
from vime_core.run.folder import RunFolder

# Read on import: errors of wandb itself are not reported to its makers, so that `offline` is what it says.
os.environ.setdefault("WANDB_ERROR_REPORTING", "false")

import wandb

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from vime_core.trackers.config import WandbConfig

FOLDER = "wandb"
"""Within the run folder."""

RUN_ID_FILE = "vime_run_id"
STEP = "step"


class WandbTracker:
    """Implements `vime_core.plugins.interfaces.Tracker`. A run that is resumed goes on under its old id.

    Curves are drawn over `step`, not over the number of the call: steps that a run repeats after it was cut back to
    a checkpoint are accepted, and the later value is the valid one.
    """

    def __init__(self, config: WandbConfig, run_folder: Path) -> None:
        """Start the run at wandb.

        Raises:
            ConfigError: when it does not start, e.g. without a login in mode `online`.
        """
        folder = RunFolder(run_folder)
        settings = wandb.Settings(
            console="off",
            silent=True,
            init_timeout=config.start_timeout_s,
            login_timeout=config.start_timeout_s,
        )
        try:
            self._run = wandb.init(
                mode=cast("Any", config.mode),
                project=config.project,
                entity=config.entity,
                group=config.group,
                name=run_folder.name,
                id=_run_id(run_folder / FOLDER),
                resume="allow",
                dir=run_folder,
                config=folder.read_config(),
                settings=settings,
            )
        except wandb.errors.Error as error:
            raise ConfigError(
                f"tracker wandb does not start: {' '.join(str(error).split())} (trackers.wandb.mode={config.mode}; "
                "offline needs neither login nor network)"
            ) from error
        self._run.define_metric("*", step_metric=STEP)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Hand one step over; in mode `online` it is uploaded in the background."""
        self._run.log({STEP: step, **metrics})

    def close(self) -> None:
        """Finish the files, and in mode `online` the upload; safe to call twice."""
        self._run.finish()


def _run_id(folder: Path) -> str:
    """The id of the run at wandb; made once for a run folder."""
    file = folder / RUN_ID_FILE
    if not file.exists():
        folder.mkdir(exist_ok=True)
        write_text(file, secrets.token_hex(8))
    return file.read_text(encoding="utf-8").strip()
