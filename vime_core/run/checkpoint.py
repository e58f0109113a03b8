"""Checkpoints: complete or absent, verified when they are read, the old ones deleted only afterwards."""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import vime_core
from vime_core.errors import RunFolderError
from vime_core.run.atomic import aside, cannot_write, is_partial, sync, sync_tree
from vime_core.run.manifest import damage, write_manifest

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FORMAT = 1
"""Changes whenever an older vime could not read a newer checkpoint, or the other way round."""
STATE = "state.json"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A whole and verified checkpoint."""

    step: int
    path: Path
    state: dict[str, Any]
    """What was given to `CheckpointStore.commit`."""
    config_fingerprint: str
    """What was given to the `CheckpointStore` that wrote it."""


class CheckpointStore:
    """The checkpoints of one run: `<folder>/step_000020/`."""

    def __init__(self, folder: Path, keep_last: int, config_fingerprint: str = "") -> None:
        """Touches nothing.

        Args:
            folder: Exists.
            keep_last: Complete checkpoints that stay when another one is complete, at least 1.
            config_fingerprint: Of the configuration that new checkpoints belong to.
        """
        self._folder = folder
        self._config_fingerprint = config_fingerprint
        self._keep_last = keep_last

    def begin(self, step: int) -> Path:
        """An empty folder to save into, beside the checkpoints; it becomes one with `commit`.

        Raises:
            RunFolderError: when there is a checkpoint of this step, or the folder cannot be made.
        """
        if step in self.steps():
            raise RunFolderError(
                f"{self._path(step)} exists: a checkpoint is never overwritten; delete that folder first"
            )
        self.clean()
        partial = aside(self._path(step))
        try:
            partial.mkdir()
        except OSError as error:
            raise cannot_write(self._path(step), error) from error
        return partial

    def commit(self, step: int, state: Mapping[str, Any]) -> Checkpoint:
        """Complete what was saved into the folder of `begin`, then delete the checkpoints past `keep_last`.

        Args:
            step: As in `begin`.
            state: Plain JSON values; comes back in `Checkpoint.state`.

        Raises:
            RunFolderError: when it cannot be written; there is no checkpoint of this step then.
        """
        partial, path = aside(self._path(step)), self._path(step)
        content = {
            "format": FORMAT,
            "vime_version": vime_core.__version__,
            "config_fingerprint": self._config_fingerprint,
            "step": step,
            "state": dict(state),
        }
        try:
            (partial / STATE).write_text(json.dumps(content, allow_nan=False), encoding="utf-8")
            write_manifest(partial)
            sync_tree(partial)
            os.rename(partial, path)
            sync(self._folder)
        except OSError as error:
            raise cannot_write(path, error) from error
        for old in self.steps()[: -self._keep_last]:
            self._delete(old)
        return Checkpoint(step, path, dict(state), self._config_fingerprint)

    def steps(self) -> list[int]:
        """Steps of all checkpoints, ascending; whether they are whole is not looked at."""
        entries = self._folder.iterdir() if self._folder.is_dir() else ()
        found = (re.fullmatch(r"step_(\d+)", entry.name) for entry in entries if entry.is_dir())
        return sorted(int(match[1]) for match in found if match)

    def latest(self) -> Checkpoint | None:
        """The checkpoint of the highest step, verified; None when there is none at all.

        Raises:
            RunFolderError: when it is damaged. An older one is never taken silently.
        """
        steps = self.steps()
        return self.load(steps[-1]) if steps else None

    def load(self, step: int) -> Checkpoint:
        """The checkpoint of a step, verified.

        Raises:
            RunFolderError: when it is missing, damaged or of another format.
        """
        path = self._path(step)
        if not path.is_dir():
            there = ", ".join(map(str, self.steps())) or "none"
            raise RunFolderError(f"{self._folder} holds no checkpoint of step {step}; there are: {there}")
        content = self._content(step)
        if content is not None and content.get("format") not in (None, FORMAT):
            raise RunFolderError(
                f"checkpoint {path} has format {content['format']}, this vime ({vime_core.__version__}) reads "
                f"format {FORMAT}: continue with the version that wrote it, {content.get('vime_version')}"
            )
        problem = damage(path)
        if content is None or problem is not None:
            problem = problem or f"{STATE} is not readable"
            raise RunFolderError(f"checkpoint {path} is damaged: {problem}; {self._remedy(step)}")
        return Checkpoint(step, path, content["state"], content["config_fingerprint"])

    def clean(self) -> None:
        """Delete what a process left that died while it saved or deleted."""
        for entry in self._folder.iterdir():
            if is_partial(entry):
                shutil.rmtree(entry)

    def _path(self, step: int) -> Path:
        return self._folder / f"step_{step:06d}"

    def _delete(self, step: int) -> None:
        """Rename first, so that a checkpoint that is half deleted does not look like one."""
        partial = aside(self._path(step))
        os.rename(self._path(step), partial)
        shutil.rmtree(partial)

    def _content(self, step: int) -> dict[str, Any] | None:
        try:
            content = json.loads((self._path(step) / STATE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return content if isinstance(content, dict) else None

    def _remedy(self, step: int) -> str:
        for earlier in reversed([other for other in self.steps() if other < step]):
            if damage(self._path(earlier)) is None:
                return f"delete that folder to continue from {self._path(earlier).name}, the last whole one before it"
        return "no earlier one is whole: start a new run"
