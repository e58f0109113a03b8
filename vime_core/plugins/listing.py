"""What `vime plugins list` shows: every component and every plugin that brings none, with its state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vime_core.plugins.discovery import PluginInfo
    from vime_core.plugins.manager import Plugins

Status = Literal["available", "unavailable", "ambiguous", "failed", "blocked", "empty"]


@dataclass(frozen=True, slots=True)
class ListedComponent:
    """One row of the list; plain strings."""

    kind: str
    """Configuration key that selects it; empty for a plugin without components."""
    name: str
    """Empty for a plugin without components."""
    plugin: str
    distribution: str
    version: str
    status: Status
    detail: str
    """Why the status is not `available`."""
    summary: str


def list_components(plugins: Plugins) -> list[ListedComponent]:
    """Components by kind and name, then plugins that bring none: failed, blocked, empty."""
    rows = [*_component_rows(plugins)]
    rows.sort(key=lambda row: (row.kind, row.name, row.distribution))
    rows += [_plugin_row(failure.plugin, "failed", failure.cause) for failure in plugins.failed]
    rows += [_plugin_row(plugin, "blocked", "") for plugin in plugins.blocked]
    busy = {registered.plugin for registered in plugins.registered}
    rows += [_plugin_row(plugin, "empty", "registers no component") for plugin in plugins.loaded if plugin not in busy]
    return rows


def _component_rows(plugins: Plugins) -> Iterator[ListedComponent]:
    for registered in plugins.registered:
        entry, plugin = registered.entry, registered.plugin
        conflict, reason = plugins.conflict(registered), registered.unavailable()
        status: Status = "ambiguous" if conflict else "unavailable" if reason else "available"
        yield ListedComponent(
            kind=entry.group,
            name=entry.name,
            plugin=plugin.name,
            distribution=plugin.distribution,
            version=plugin.version,
            status=status,
            detail=conflict or reason or "",
            summary=entry.summary,
        )


def _plugin_row(plugin: PluginInfo, status: Status, detail: str) -> ListedComponent:
    return ListedComponent("", "", plugin.name, plugin.distribution, plugin.version, status, detail, "")
