"""Finds plugins: the entry points of group `vime`, and core's own registrations beside them."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING

from vime_core.errors import PluginError
from vime_core.plugins.hookspecs import PROJECT
from vime_core.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable

BLOCK_VARIABLE = "VIME_PLUGINS_BLOCK"
"""Environment variable: names of plugins that are not imported, separated by commas."""

CORE = "core"
"""Name of the plugin that holds core's own components."""


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """A plugin and where it comes from."""

    name: str
    """Name of the entry point."""
    distribution: str
    version: str

    def __str__(self) -> str:
        return f"{self.name} ({self.distribution} {self.version})"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plugin that was found and not yet imported."""

    info: PluginInfo
    entry_point: EntryPoint

    def load(self) -> object:
        """Import what the entry point names.

        Raises:
            PluginError: when the entry point is malformed.
            Exception: whatever the import raises.
        """
        if not EntryPoint.pattern.match(self.entry_point.value):
            raise PluginError(f"entry point {self.entry_point.value!r} must look like 'package.hooks'")
        return self.entry_point.load()

    def conf_folder(self) -> Path | None:
        """Folder `conf` beside the module that was loaded, with experiments and hardware profiles; None without one."""
        file = getattr(sys.modules.get(self.entry_point.module), "__file__", None)
        folder = Path(file).with_name("conf") if file else None
        return folder if folder is not None and folder.is_dir() else None


def discover() -> list[Candidate]:
    """Core first, then every entry point of group `vime` by name, imported or not."""
    core = Candidate(PluginInfo(CORE, "vime-core", __version__), EntryPoint(CORE, "vime_core.hooks", PROJECT))
    found = [_candidate(entry_point) for entry_point in entry_points(group=PROJECT)]
    return [core, *sorted(found, key=lambda candidate: (candidate.info.name, candidate.info.distribution))]


def blocked_names(block: Iterable[str]) -> frozenset[str]:
    """Names of plugins or distributions to leave out: those given, and those of `VIME_PLUGINS_BLOCK`.

    Raises:
        PluginError: for `core`, which cannot be left out.
    """
    from_environment = os.environ.get(BLOCK_VARIABLE, "").split(",")
    names = frozenset(block) | {name.strip() for name in from_environment if name.strip()}
    if CORE in names:
        raise PluginError(f"plugin {CORE!r} holds vime's own components and cannot be blocked")
    return names


def _candidate(entry_point: EntryPoint) -> Candidate:
    distribution = entry_point.dist
    name = distribution.name if distribution else "unknown distribution"
    version = distribution.version if distribution else "unknown version"
    return Candidate(PluginInfo(entry_point.name, name, version), entry_point)
