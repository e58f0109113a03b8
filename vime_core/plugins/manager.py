"""Loads plugins and selects components by name."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

import pluggy

from vime_core.errors import PluginError
from vime_core.plugins import hookspecs
from vime_core.plugins.discovery import BLOCK_VARIABLE, CORE, Candidate, PluginInfo, blocked_names, discover
from vime_core.plugins.kinds import entry_type_of
from vime_core.plugins.registration import Failure, Registered, register

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from vime_core.plugins.entries import Entry

TRACEBACK_HINT = "--traceback shows where"


@dataclass(frozen=True)
class Plugins:
    """The plugins of this process: what they registered, and what went wrong. Plain data, made by `load_plugins`."""

    loaded: Sequence[PluginInfo]
    registered: Sequence[Registered]
    failed: Sequence[Failure]
    blocked: Sequence[PluginInfo]
    unknown_blocks: Sequence[str]
    """Names to block that no plugin has."""
    conf_folders: Mapping[Path, PluginInfo]
    """Folders with YAML files that plugins ship, in the order in which they are searched."""

    def entries(self, kind: str) -> dict[str, Registered]:
        """All entries of a kind by name, whether available or not; of two with one name the first.

        Args:
            kind: name of the kind (`training backend`) or its configuration key (`train`).
        """
        found: dict[str, Registered] = {}
        for registered in self._of_kind(kind):
            found.setdefault(registered.entry.name, registered)
        return dict(sorted(found.items()))

    def find(self, kind: str, name: str) -> Registered:
        """The entry of that name, available or not.

        Raises:
            PluginError: when there is none, or more than one.
        """
        matches = [registered for registered in self._of_kind(kind) if registered.entry.name == name]
        if not matches:
            raise self._unknown(kind, name)
        conflict = self.conflict(matches[0])
        if conflict:
            raise PluginError(conflict)
        return matches[0]

    def select(self, kind: str, name: str) -> Entry:
        """The entry of that name, for use.

        Raises:
            PluginError: when there is none, more than one, or when it is unavailable here.
        """
        registered = self.find(kind, name)
        reason = registered.unavailable()
        if reason:
            raise PluginError(
                f"{registered.entry.kind} {name!r} of plugin {registered.plugin} is unavailable: {reason}"
            )
        return registered.entry

    def conflict(self, registered: Registered) -> str | None:
        """Why it is not clear which component the entry's name means, or None."""
        entry = registered.entry
        same_entry = [other.plugin for other in self._of_kind(entry.group) if other.entry.name == entry.name]
        if len(same_entry) > 1 and len({plugin.name for plugin in same_entry}) > 1:
            return f"{entry.kind} {entry.name!r} is provided by {_both(same_entry)}; {_remedy(same_entry[-1].name)}"
        same_plugin = [plugin for plugin in self.loaded if plugin.name == registered.plugin.name]
        if len(same_plugin) > 1:
            return (
                f"{entry.kind} {entry.name!r}: plugin {registered.plugin.name!r} is declared by {_both(same_plugin)}; "
                f"{_remedy(same_plugin[-1].distribution)}"
            )
        return None

    def versions(self) -> dict[str, tuple[str, str]]:
        """Name of each loaded plugin -> (distribution, version); equal in the driver and in every worker of a run."""
        return {plugin.name: (plugin.distribution, plugin.version) for plugin in self.loaded}

    def warnings(self) -> list[str]:
        """One line for each plugin that failed, each name that is not unique and each block of nothing."""
        conflicts = (self.conflict(registered) for registered in self.registered)
        return [
            *map(str, self.failed),
            *dict.fromkeys(conflict for conflict in conflicts if conflict),
            *(f"plugin {name!r} is to be blocked, but none of that name is installed" for name in self.unknown_blocks),
        ]

    def check_strict(self) -> None:
        """For `plugins.strict=true`.

        Raises:
            PluginError: when any plugin failed.
        """
        if self.failed:
            raise PluginError(f"{self.failed[0]} (plugins.strict=true); {TRACEBACK_HINT}") from self.failed[0].error

    def _of_kind(self, kind: str) -> list[Registered]:
        entry_type = entry_type_of(kind)
        return [registered for registered in self.registered if isinstance(registered.entry, entry_type)]

    def _unknown(self, kind: str, name: str) -> PluginError:
        label = f"{entry_type_of(kind).kind} {name!r}"
        names = list(self.entries(kind))
        close = get_close_matches(name, names, n=1)
        parts = [f"unknown {label}; there are {', '.join(names)}" if names else f"unknown {label}; there is none"]
        if close:
            parts.append(f"did you mean {close[0]}?")
        if self.blocked:
            parts.append(f"blocked: {', '.join(map(str, self.blocked))}")
        if not self.failed:
            return PluginError("; ".join(parts))
        namesakes = [failure for failure in self.failed if failure.plugin.name == name]
        if namesakes:
            parts = [f"{label}: {namesakes[0]}"]
        else:
            parts += map(str, self.failed)
        unknown = PluginError("; ".join([*parts, TRACEBACK_HINT]))
        unknown.__cause__ = (namesakes or self.failed)[0].error
        return unknown


def load_plugins(block: Iterable[str] = ()) -> Plugins:
    """Find, import and check all plugins; those that fail are kept with the reason, the others work.

    Args:
        block: plugins that are not imported, by name or by distribution; `VIME_PLUGINS_BLOCK` adds to them.
    """
    blocked = blocked_names(block)
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    loaded: list[PluginInfo] = []
    registered: list[Registered] = []
    failed: list[Failure] = []
    left_out: list[PluginInfo] = []
    conf_folders: dict[Path, PluginInfo] = {}
    candidates = discover()
    for candidate in candidates:
        if {candidate.info.name, candidate.info.distribution} & blocked and not _is_core(candidate):
            left_out.append(candidate.info)
            continue
        result = _reserved(candidate) or register(manager, candidate)
        if isinstance(result, Failure):
            failed.append(result)
        else:
            loaded.append(candidate.info)
            registered += result
            folder = None if _is_core(candidate) else candidate.conf_folder()
            if folder is not None:
                conf_folders.setdefault(folder, candidate.info)
    known = {name for plugin in candidates for name in (plugin.info.name, plugin.info.distribution)}
    return Plugins(loaded, registered, failed, left_out, sorted(blocked - known), conf_folders)


def _is_core(candidate: Candidate) -> bool:
    return candidate.info.name == CORE and candidate.entry_point.dist is None


def _reserved(candidate: Candidate) -> Failure | None:
    if candidate.info.name != CORE or _is_core(candidate):
        return None
    error = PluginError(f"the plugin name {CORE!r} is reserved; rename the entry point")
    return Failure(candidate.info, str(error), error)


def _both(plugins: Sequence[PluginInfo]) -> str:
    return " and ".join(map(str, plugins))


def _remedy(name: str) -> str:
    return f"uninstall one, or block one with plugins.block=[{name}] or {BLOCK_VARIABLE}={name}"
