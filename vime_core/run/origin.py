"""run.json: in which format a run folder is, and which model the run started from."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import vime_core
from vime_core.errors import RunFolderError
from vime_core.run.atomic import write_text

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FORMAT = 1
"""Changes whenever an older vime could not go on with, or read, a newer run folder, or the other way round."""


def write_origin(file: Path, model: Mapping[str, str]) -> None:
    """Write run.json.

    Args:
        file: The path.
        model: What `vime_core.models.fingerprint.model_fingerprint` says of the model folder.
    """
    content = {"format": FORMAT, "vime_version": vime_core.__version__, "model": dict(model)}
    write_text(file, json.dumps(content, indent=1) + "\n")


def check_format(file: Path) -> None:
    """Check that this vime can read the run folder; one whose run.json is not written yet passes.

    Raises:
        RunFolderError: names the version that can.
    """
    if not file.exists():
        return
    content = _read(file)
    if content.get("format") != FORMAT:
        raise RunFolderError(
            f"{file.parent} is a run folder of format {content.get('format')}, this vime ({vime_core.__version__}) "
            f"reads format {FORMAT}: use the version that wrote it, {content.get('vime_version')}"
        )


def check_model(file: Path, model: Mapping[str, str], path: str) -> None:
    """Check that the model folder is as it was when the run started.

    Args:
        file: run.json.
        model: As in `write_origin`, of the folder now.
        path: The folder, for the message.

    Raises:
        RunFolderError: lists the files that differ.
    """
    before = _read(file).get("model", {})
    changed = [name for name in sorted(before.keys() | model.keys()) if before.get(name) != model.get(name)]
    if changed:
        raise RunFolderError(
            f"{path} has changed since {file.parent} started: {', '.join(changed)}; restore it or start a new run"
        )


def _read(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise RunFolderError(f"{file} is missing: it cannot be told which model the run started from") from error
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{file} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise RunFolderError(f"{file} cannot be read: it holds no JSON object")
    return content
