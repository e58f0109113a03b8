"""What a run was made with: versions.json, written whenever it starts or goes on."""

from __future__ import annotations

import json
import platform
import re
from importlib.metadata import PackageNotFoundError, distribution, entry_points, version
from typing import TYPE_CHECKING

from vime_core.plugins.hookspecs import PROJECT
from vime_core.run.atomic import write_text

if TYPE_CHECKING:
    from pathlib import Path

CORE_DISTRIBUTION = "vime-core"


def installed_versions() -> dict[str, str]:
    """Python, vime's core and plugins, and every installed distribution that one of them asks for, by name."""
    plugins = {entry.dist.name for entry in entry_points(group=PROJECT) if entry.dist is not None}
    ours = [name for name in (CORE_DISTRIBUTION, *sorted(plugins)) if _version(name)]
    asked = {_normalised(name) for owner in ours for name in _requirements(owner)}
    names = [*ours, *sorted(asked - {_normalised(name) for name in ours})]
    found = {name: _version(name) for name in names}
    return {"python": platform.python_version()} | {name: number for name, number in found.items() if number}


def write_versions(path: Path) -> None:
    """Write `installed_versions` as a JSON object."""
    write_text(path, json.dumps(installed_versions(), indent=1) + "\n")


def read_versions(path: Path) -> dict[str, str]:
    """What `write_versions` wrote; empty when there is no such file, or it is no JSON object."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {str(name): str(number) for name, number in content.items()} if isinstance(content, dict) else {}


def _requirements(name: str) -> list[str]:
    """Names of what a distribution requires, with all its extras but `dev`."""
    required = distribution(name).requires or []
    names = (re.match(r"[\w.-]+", item) for item in required if not re.search(r"""extra\s*==\s*["']dev["']""", item))
    return [match[0] for match in names if match]


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
