"""A run on disk: where each of its files lies."""

from __future__ import annotations

import fcntl
import logging
import os
import re
import socket
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf

from vime_core.errors import ConfigError, RunFolderError
from vime_core.run.atomic import PARTIAL, is_partial, write_text
from vime_core.run.metrics import truncate_after
from vime_core.run.origin import check_format
from vime_core.run.rollouts import write_rollouts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vime_core.config.schema import RunConfig
    from vime_core.types import Float64Array, Group

log = logging.getLogger(__name__)


class RunFolder:
    """Paths of one run."""

    def __init__(self, path: Path) -> None:
        """Touches nothing; see `create` and `open`."""
        self.path = path.resolve()
        self.config_file = self.path / "config.yaml"
        self.versions_file = self.path / "versions.json"
        self.origin_file = self.path / "run.json"
        self.metrics_file = self.path / "metrics.jsonl"
        self.log_file = self.path / "log.txt"
        self.logs = self.path / "logs"
        """What servers and the keeper write."""
        self.rollouts = self.path / "rollouts"
        self.checkpoints = self.path / "checkpoints"
        self._lock_file = self.path / ".lock"
        self._lock: int | None = None

    @classmethod
    def create(cls, config: RunConfig) -> RunFolder:
        """Make `<root>/<date>/<time>_<name>`, with a number behind it where that is taken.

        Raises:
            ConfigError: when `run.name` cannot be part of a folder name.
            RunFolderError: when the folder cannot be made.
        """
        _check_name(config.name)
        parent = Path(config.root) / time.strftime("%Y-%m-%d")
        name = f"{time.strftime('%H-%M-%S')}_{config.name}"
        folder, number = cls(parent / name), 1
        while True:
            try:
                folder._make(exist_ok=False)
            except FileExistsError:
                number += 1
                folder = cls(parent / f"{name}_{number}")
            else:
                return folder

    @classmethod
    def check_new(cls, config: RunConfig) -> None:
        """Check what can be checked of a run folder before it is made.

        Raises:
            ConfigError: when `run.name` cannot be part of a folder name.
            RunFolderError: when `run.root` cannot be written to.
        """
        _check_name(config.name)
        check_writable(Path(config.root))

    @classmethod
    def create_at(cls, path: Path) -> RunFolder:
        """Make a run folder of this very name; an existing folder becomes one.

        Raises:
            RunFolderError: when the folder cannot be made.
        """
        folder = cls(path)
        folder._make(exist_ok=True)
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """The run folder at `path`, to go on in.

        Raises:
            RunFolderError: when there is none, or it has a format that this vime cannot read.
        """
        folder = cls.check_open(path)
        folder._make_subfolders()
        return folder

    @classmethod
    def check_open(cls, path: Path) -> RunFolder:
        """What `open` gives and checks, without making anything.

        Raises:
            RunFolderError: as `open`, and when the folder cannot be written to.
        """
        folder = cls(path)
        if not folder.path.is_dir():
            raise RunFolderError(f"there is no run folder {path}: check resume.run")
        if not folder.config_file.is_file():
            raise RunFolderError(f"{path} is no run folder: it has no config.yaml")
        check_format(folder.origin_file)
        check_writable(folder.path)
        return folder

    @classmethod
    def find(cls, path: Path) -> RunFolder:
        """The run folder at `path`, to be read only: nothing in it is made or changed.

        Raises:
            RunFolderError: when there is none, or it has a format that this vime cannot read.
        """
        folder = cls(path)
        if not folder.config_file.is_file():
            problem = "it has no config.yaml" if folder.path.is_dir() else "there is no such folder"
            raise RunFolderError(f"{path} is no run folder: {problem}; give one like outputs/<date>/<time>_<name>")
        check_format(folder.origin_file)
        return folder

    def is_blank(self) -> bool:
        """Whether nothing of a run, and nothing else, is in the folder yet; what was made for it aside."""
        made = (self.logs, self.rollouts, self.checkpoints, self._lock_file)
        files = [file for file in self.path.rglob("*") if file not in made]
        return self.path.is_dir() and all(is_partial(file) for file in files)

    def lock(self) -> None:
        """Keep other processes from writing to this run, until this process ends or calls `unlock`.

        Raises:
            RunFolderError: when another process has it.
        """
        descriptor = os.open(self._lock_file, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:
            owner = os.read(descriptor, 1024).decode()
            os.close(descriptor)
            raise RunFolderError(f"{self.path} is in use by {owner}: wait for it to end, or start a new run") from error
        except OSError as error:
            log.warning("%s cannot be locked (%s): see that no other process writes to it", self.path, error.strerror)
        self._lock = descriptor
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode())

    def unlock(self) -> None:
        """Let other processes write to this run; safe to call twice."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def rollout_file(self, step: int) -> Path:
        """Where the samples of a step are."""
        return self.rollouts / f"step_{step:06d}.parquet"

    def write_rollouts(
        self, step: int, groups: Sequence[Group], advantages: Mapping[tuple[str, int], Float64Array]
    ) -> None:
        """Write every sample of a step, see `vime_core.run.rollouts.write_rollouts`."""
        write_rollouts(self.rollout_file(step), groups, advantages, step)

    def cut_after(self, step: int) -> None:
        """Remove metrics and rollouts of all later steps; -1 removes all."""
        if self.metrics_file.exists():
            truncate_after(self.metrics_file, step)
        for file in self.rollouts.iterdir():
            found = re.fullmatch(r"step_(\d+)\.parquet", file.name)
            if is_partial(file) or (found and int(found[1]) > step):
                file.unlink()

    def write_config(self, tree: Mapping[str, Any]) -> None:
        """Write the resolved configuration tree: plain mappings, lists, numbers, strings."""
        write_text(self.config_file, OmegaConf.to_yaml(OmegaConf.create(dict(tree))))

    def read_config(self) -> dict[str, Any]:
        """The tree that `write_config` wrote.

        Raises:
            RunFolderError: when it cannot be read.
        """
        try:
            tree = OmegaConf.to_container(OmegaConf.load(self.config_file), resolve=False)
        except Exception as error:  # the parsers' exceptions have no base class in common
            raise RunFolderError(f"cannot read {self.config_file}: {str(error).splitlines()[0]}") from error
        if not isinstance(tree, dict):
            raise RunFolderError(f"cannot read {self.config_file}: it holds no mapping")
        return {str(key): value for key, value in tree.items()}

    def _make(self, *, exist_ok: bool) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._cannot_make(error) from error
        try:
            self.path.mkdir(exist_ok=exist_ok)
            self._make_subfolders()
        except FileExistsError:
            raise
        except OSError as error:
            raise self._cannot_make(error) from error

    def _make_subfolders(self) -> None:
        for folder in (self.logs, self.rollouts, self.checkpoints):
            folder.mkdir(exist_ok=True)

    def _cannot_make(self, error: OSError) -> RunFolderError:
        return RunFolderError(
            f"cannot make the run folder {self.path}: {error.strerror}; set run.root to a writable folder"
        )


def check_writable(path: Path) -> None:
    """Check that a folder is there and can be written to, or that it can be made, with a folder that goes at once.

    Raises:
        RunFolderError: names the folder that is in the way.
    """
    there = next(folder for folder in (path.resolve(), *path.resolve().parents) if folder.exists())
    if not there.is_dir():
        raise RunFolderError(f"{path} cannot be a folder: {there} is a file")
    try:
        Path(tempfile.mkdtemp(prefix=".vime", suffix=PARTIAL, dir=there)).rmdir()
    except OSError as error:  # permissions alone do not tell: root may do all, and /proc holds no new folders
        raise RunFolderError(f"{there} cannot be written to: choose a writable folder") from error


def _check_name(name: str) -> None:
    if not re.fullmatch(r"[\w.+=-]+", name):
        raise ConfigError(f"run.name={name!r} may hold only letters, digits and any of _.+=-")
