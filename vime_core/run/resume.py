"""Start a run, or go on with one."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash

from vime_core.errors import ConfigError, RunFolderError
from vime_core.run.checkpoint import Checkpoint, CheckpointStore
from vime_core.run.folder import RunFolder, check_writable
from vime_core.run.origin import check_model, write_origin
from vime_core.run.versions import write_versions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from vime_core.config.schema import Config

FIXED_KEYS = (
    "placement",
    "model",
    "data",
    "algorithm.name",
    "algorithm.updates_per_rollout",
    "train.name",
    "train.dtype",
    "train.lr_schedule",
    "train.lr_warmup_steps",
    "rollout.name",
    "rollout.prompts_per_step",
    "rollout.samples_per_prompt",
    "rollout.max_prompt_tokens",
    "rollout_function.name",
    "run.seed",
)
"""Keys, with all keys below them, whose saved state would mean something else under another value."""

STEPS = "train.steps"
"""May change under a constant learning rate only: other schedules are stretched over the whole run."""


@dataclass(frozen=True, slots=True)
class OpenRun:
    """A run folder that this process may write to."""

    folder: RunFolder
    checkpoints: CheckpointStore
    checkpoint: Checkpoint | None
    """Where to go on from; None for a run that starts."""


def open_run(
    config: Config,
    tree: Mapping[str, Any],
    model: Mapping[str, str],
    check_state: Callable[[Mapping[str, Any]], None],
) -> OpenRun:
    """Make a run folder or open the one to continue, lock it, and leave it as it was at the checkpoint.

    `resume.mode`: `never` makes a new folder; `must` continues `resume.run`; `auto` does so when there is a
    checkpoint and otherwise starts anew, in `resume.run` where it is given, so that the same command can be repeated
    until the run is done.

    Args:
        config: The typed configuration.
        tree: The same, resolved, as plain mappings; saved as `config.yaml`.
        model: What `vime_core.models.fingerprint.model_fingerprint` says of the model folder.
        check_state: Raises a RunFolderError when the state of the checkpoint to continue does not fit.

    Raises:
        ConfigError: for `resume.mode=must` without `resume.run`.
        RunFolderError: when there is nothing to continue, or it does not fit; nothing has been changed then.
    """
    if config.resume.mode == "must" and config.resume.run is None:
        raise ConfigError("resume.mode=must continues a run: give its folder with resume.run=<folder>")
    if config.resume.mode == "never" or config.resume.run is None:
        folder = RunFolder.create(config.run)
    else:
        folder = _find(Path(config.resume.run), create=config.resume.mode == "auto")
    folder.lock()
    try:
        return _prepare(folder, config, tree, model, check_state)
    except BaseException:
        folder.unlock()
        raise


def check_run(
    config: Config,
    tree: Mapping[str, Any],
    model: Mapping[str, str],
    check_state: Callable[[Mapping[str, Any]], None],
) -> None:
    """Check what `open_run` checks, with the same arguments, and change nothing; a lock is not looked at.

    Raises:
        ConfigError: for a `run.name` that no folder can have.
        RunFolderError: when no run folder can be made, there is nothing to continue, or it does not fit.
    """
    if config.resume.mode == "never" or config.resume.run is None:
        RunFolder.check_new(config.run)
        return
    path = Path(config.resume.run)
    if config.resume.mode == "auto" and _starts_anew(path):
        check_writable(path)
        return
    folder = RunFolder.check_open(path)
    _checkpoint_to_continue(_store(folder, config, tree), folder, config, tree, model, check_state)


def check_same(saved: Mapping[str, Any], new: Mapping[str, Any], folder: Path) -> None:
    """Compare two configuration trees.

    Raises:
        RunFolderError: lists the fixed keys that differ.
    """
    before, after = fixed_values(saved), fixed_values(new)
    differences = [
        f"{key} (was {json.dumps(before.get(key))}, now {json.dumps(after.get(key))})"
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
    ]
    if differences:
        raise RunFolderError(
            f"{folder} cannot go on with other values of {', '.join(differences)}: set them back or start a new run"
        )


def fixed_values(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The leaves of a configuration tree that must not change over a run, by dotted key."""
    leaves = dict(_leaves(tree, ""))
    fixed = FIXED_KEYS if leaves.get("train.lr_schedule", "constant") == "constant" else (*FIXED_KEYS, STEPS)
    return {key: value for key, value in leaves.items() if any(f"{key}.".startswith(f"{name}.") for name in fixed)}


def config_fingerprint(tree: Mapping[str, Any]) -> str:
    """Checksum of the fixed values, kept in each checkpoint."""
    return str(xxhash.xxh3_64_hexdigest(json.dumps(fixed_values(tree), sort_keys=True).encode()))


def _find(path: Path, *, create: bool) -> RunFolder:
    """The folder to continue; with `create` one that is missing, or holds nothing yet, becomes a run folder."""
    return RunFolder.create_at(path) if create and _starts_anew(path) else RunFolder.open(path)


def _starts_anew(path: Path) -> bool:
    return not path.exists() or RunFolder(path).is_blank()


def _prepare(
    folder: RunFolder,
    config: Config,
    tree: Mapping[str, Any],
    model: Mapping[str, str],
    check_state: Callable[[Mapping[str, Any]], None],
) -> OpenRun:
    checkpoints = _store(folder, config, tree)
    checkpoint = _checkpoint_to_continue(checkpoints, folder, config, tree, model, check_state)
    checkpoints.clean()
    folder.cut_after(checkpoint.step if checkpoint else -1)
    folder.write_config(tree)
    write_versions(folder.versions_file)
    write_origin(folder.origin_file, model)
    return OpenRun(folder, checkpoints, checkpoint)


def _store(folder: RunFolder, config: Config, tree: Mapping[str, Any]) -> CheckpointStore:
    return CheckpointStore(folder.checkpoints, config.checkpoint.keep_last, config_fingerprint(tree))


def _checkpoint_to_continue(
    checkpoints: CheckpointStore,
    folder: RunFolder,
    config: Config,
    tree: Mapping[str, Any],
    model: Mapping[str, str],
    check_state: Callable[[Mapping[str, Any]], None],
) -> Checkpoint | None:
    """The last one, checked; None when the run starts."""
    checkpoint = checkpoints.latest()
    if checkpoint is None and config.resume.mode == "must":
        raise RunFolderError(
            f"{folder.path} holds no checkpoint to continue from: start a new run, or use resume.mode=auto"
        )
    if checkpoint is not None:
        _check_fits(checkpoint, folder, tree)
        check_model(folder.origin_file, model, config.model.path)
        check_state(checkpoint.state)
    return checkpoint


def _check_fits(checkpoint: Checkpoint, folder: RunFolder, tree: Mapping[str, Any]) -> None:
    saved = folder.read_config()
    check_same(saved, tree, folder.path)
    if checkpoint.config_fingerprint != config_fingerprint(saved):
        raise RunFolderError(
            f"{folder.config_file} is not the configuration of {checkpoint.path.name}: it was changed by hand; "
            "restore it or start a new run"
        )


def _leaves(tree: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
