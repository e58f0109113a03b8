"""The rollout backend `replay`: the recorded rollouts of a run, step by step."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash

from vime_core.errors import ConfigError, RunFolderError
from vime_core.run.folder import RunFolder
from vime_core.run.rollouts import check_rollouts, read_rollouts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vime_core.run.config import ReplayConfig
    from vime_core.types import Group

DRAWN_WITH = (
    "prompts_per_step",
    "samples_per_prompt",
    "temperature",
    "top_p",
    "top_k",
    "max_prompt_tokens",
    "max_response_tokens",
)
"""Settings that must be those of the recorded run: what the samples mean depends on them."""


class Replay:
    """Implements `RolloutRecord` over the `rollouts/step_NNNNNN.parquet` of a run folder, which stays as it is.

    Args:
        config: the folder, and the settings that its rollouts must have been drawn with.
        steps: the last step that will be asked for.

    Raises:
        RunFolderError: when there is no such run, it lacks a step, or has another file in its place.
        ConfigError: when it was recorded with other settings.
    """

    def __init__(self, config: ReplayConfig, steps: int) -> None:
        self._folder = RunFolder.find(Path(config.path))
        self._checksums: list[str] = []
        self._check_settings(config)
        self._check_steps(steps)

    @property
    def folder(self) -> Path:
        """The recorded run."""
        return self._folder.path

    def groups(self, step: int) -> list[Group]:
        """All groups of one step; every sample has its verdict.

        Raises:
            RunFolderError: when they cannot be read, or were not scored.
        """
        file = self._folder.rollout_file(step)
        groups = read_rollouts(file)
        if not groups or any(sample.verdict is None for group in groups for sample in group.samples):
            raise RunFolderError(f"{file} holds samples without a verdict, or none at all: it cannot be replayed")
        return groups

    def state(self, step: int) -> dict[str, Any]:
        """Number and checksum of the steps up to `step`."""
        for number in range(len(self._checksums) + 1, step + 1):
            self._checksums.append(_checksum(self._folder.rollout_file(number)))
        return {"steps": step, "rollouts": xxhash.xxh3_64_hexdigest("".join(self._checksums[:step]).encode())}

    def check(self, state: Mapping[str, Any]) -> None:
        """Check that the steps that `state` is of are still the same.

        Raises:
            RunFolderError: when they are not, or when `state` is not of recorded rollouts.
        """
        if "rollouts" not in state or self.state(int(state["steps"])) != dict(state):
            raise RunFolderError(
                f"rollout.path={self._folder.path}: not the rollouts of the checkpoint; give the folder that it was "
                "trained from, or start a new run with resume.mode=never"
            )

    def _check_settings(self, config: ReplayConfig) -> None:
        recorded = self._folder.read_config().get("rollout")
        if not isinstance(recorded, dict):
            raise RunFolderError(f"{self._folder.config_file} has no section rollout: it is not of a run")
        other = [name for name in DRAWN_WITH if recorded.get(name) != getattr(config, name)]
        if other:
            remedy = " ".join(f"rollout.{name}={recorded.get(name)}" for name in other)
            raise ConfigError(f"{self._folder.path} was recorded with other settings; set {remedy}")

    def _check_steps(self, steps: int) -> None:
        missing = next((n for n in range(1, steps + 1) if not self._folder.rollout_file(n).is_file()), None)
        if missing is not None:
            raise self._lacks(missing, steps)
        for step in range(1, steps + 1):
            check_rollouts(self._folder.rollout_file(step), step)

    def _lacks(self, step: int, steps: int) -> RunFolderError:
        """What to tell of the first step that is not there."""
        file = self._folder.rollout_file(step)
        if any(other > file for other in self._folder.rollouts.glob("step_*.parquet")):
            return RunFolderError(f"{file} is missing, and later steps are there: restore it, or record them anew")
        if step == 1:
            return RunFolderError(f"{self._folder.rollouts} holds no rollouts of step 1: record them anew")
        return RunFolderError(
            f"{self._folder.rollouts} holds the rollouts of {step - 1} steps and train.steps={steps} asks for "
            f"more; set train.steps={step - 1}"
        )


def _checksum(file: Path) -> str:
    try:
        return str(xxhash.xxh3_128_hexdigest(file.read_bytes()))
    except OSError as error:
        raise RunFolderError(f"cannot read rollouts {file}: {error.strerror}") from error
