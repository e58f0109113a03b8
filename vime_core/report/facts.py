"""What a run is, in words: its settings, its versions, how far it came."""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vime_core.run.report import DONE, ENDED, FAILED, INTERRUPTED
from vime_core.run.versions import read_versions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from vime_core.run.folder import RunFolder

LOG_BYTES = 16_384
LOG_LINES = 25
"""The end of log.txt that is shown for a run that is not done."""

NOTHING = "-"

_LAST_EVENT = re.compile(rf": {ENDED}(.+) \(vime_core\.loop\.train\)\Z")


@dataclass(frozen=True, slots=True)
class Facts:
    """Texts as they are; nothing is escaped."""

    title: str
    settings: Mapping[str, str]
    """Label -> value."""
    versions: Mapping[str, str]
    """Distribution -> version; empty when the run did not keep them."""
    progress: str
    config: str
    """config.yaml"""
    log_end: str
    """The last lines of log.txt; empty for a run that is done."""


def gather_facts(run: RunFolder, last_step: int | None) -> Facts:
    """Read the facts of a run.

    Args:
        run: the run folder.
        last_step: the last step with metrics; None when there is none.

    Raises:
        RunFolderError: when config.yaml cannot be read.
    """
    tree = run.read_config()
    total = _get(tree, "train.steps")
    done = isinstance(total, int) and last_step is not None and last_step >= total
    log_end = _end_of(run.log_file)
    return Facts(
        title=run.path.name,
        settings=_settings(tree) | {"Folder": str(run.path)},
        versions=read_versions(run.versions_file),
        progress=_progress(run, last_step, total, done=done, stopped=_stop_reason(log_end)),
        config=run.config_file.read_text(encoding="utf-8", errors="replace"),
        log_end="" if done else log_end,
    )


def _progress(run: RunFolder, last_step: int | None, total: Any, *, done: bool, stopped: str | None) -> str:
    steps = f" of {total} steps" if isinstance(total, int) else " steps"
    if last_step is None:
        return f"not done: 0{steps}"
    if done:
        return f"done: {last_step}{steps}"
    if stopped is not None:
        return f"ended after {last_step}{steps}: {stopped}"
    written = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(run.metrics_file.stat().st_mtime))
    return f"not done: {last_step}{steps}, the last one written {written}"


def _stop_reason(log_end: str) -> str | None:
    """Which observer ended the run, and why; None when none did, or when the run went on since."""
    ended = _LAST_EVENT.search(log_end)
    return ended[1] if ended is not None and ended[1] not in (DONE, FAILED, INTERRUPTED) else None


def _settings(tree: Mapping[str, Any]) -> dict[str, str]:
    rows = {
        "Model": ("model.name", "model.path"),
        "Prompts": ("data.name", "data.train"),
        "Rewards": ("rewards",),
        "Algorithm": ("algorithm.name",),
        "Batch": ("rollout.prompts_per_step", "rollout.samples_per_prompt"),
        "Longest": ("rollout.max_prompt_tokens", "rollout.max_response_tokens"),
        "Sampling": ("rollout.temperature", "rollout.top_p", "rollout.top_k"),
        "Training": ("train.name", "train.world_size", "train.dtype"),
        "Optimizer": ("train.lr", "train.lr_schedule", "train.clip_grad"),
        "Engines": ("rollout.name", "rollout.num_engines", "rollout.tensor_parallel_size"),
        "Devices": ("accelerator.name", "placement", "sync.name"),
        "Seed": ("run.seed",),
    }
    return {label: _joined(tree, keys) for label, keys in rows.items()}


def _joined(tree: Mapping[str, Any], keys: Sequence[str]) -> str:
    """The values; a number stands behind its key."""
    parts = []
    for key in keys:
        value = _get(tree, key)
        if isinstance(value, dict):
            parts.append(", ".join(map(str, value)))
        elif isinstance(value, str):
            parts.append(value)
        elif value is not None:
            parts.append(f"{key.rpartition('.')[2]} {value}")
    return ", ".join(part for part in parts if part) or NOTHING


def _get(tree: Mapping[str, Any], key: str) -> Any:
    value: Any = tree
    for name in key.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _end_of(log_file: Path) -> str:
    if not log_file.is_file():
        return ""
    with log_file.open("rb") as file:
        file.seek(max(os.path.getsize(log_file) - LOG_BYTES, 0))
        lines = file.read().decode("utf-8", errors="replace").splitlines()
    return "\n".join(lines[-LOG_LINES:])
