"""`vime plugins show NAME`: where a plugin or component comes from, its state, and its settings."""

from __future__ import annotations

import json
import shlex
import textwrap
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from vime_core.config.fields import setting_fields
from vime_core.config.slots import SEVERAL, settings_key
from vime_core.plugins.chosen import choose
from vime_core.plugins.discovery import discover
from vime_core.plugins.listing import list_components

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from vime_core.plugins.listing import ListedComponent
    from vime_core.plugins.manager import Plugins
    from vime_core.plugins.registration import Registered

WIDTH = 110


def show(plugins: Plugins, name: str, *, as_json: bool) -> int:
    """Print what is known of a plugin, a distribution or the components of one name.

    Raises:
        PluginError: when nothing has that name; tells the closest.
    """
    choice = choose(plugins, name)
    modules = {(found.info.name, found.info.distribution): found.entry_point.value for found in discover()}
    rows = {(row.kind, row.name, row.distribution): row for row in list_components(plugins)}
    described = [_described(registered, rows) for registered in choice.registered]
    about = [
        _plugin(row, modules.get((row.plugin, row.distribution), ""), described)
        for row in _plugin_rows(choice.registered, rows, choice.others)
    ]
    if as_json:
        print(json.dumps(about, indent=2, default=str))
    else:
        print("\n\n".join("\n".join(_lines(plugin)) for plugin in about))
    return 0


def _plugin_rows(
    registered: list[Registered], rows: Mapping[Any, ListedComponent], others: list[ListedComponent]
) -> list[ListedComponent]:
    """One row for each plugin: that of its first component, or its own when it brings none."""
    first: dict[tuple[str, str], ListedComponent] = {}
    for item in registered:
        row = rows[item.entry.group, item.entry.name, item.plugin.distribution]
        first.setdefault((row.plugin, row.distribution), row)
    return [*first.values(), *others]


def _plugin(row: ListedComponent, module: str, described: list[dict[str, Any]]) -> dict[str, Any]:
    own = [item for item in described if (item["plugin"], item["distribution"]) == (row.plugin, row.distribution)]
    return {
        "plugin": row.plugin,
        "distribution": row.distribution,
        "version": row.version,
        "entry_point": module,
        "status": "ok" if row.kind else row.status,
        "detail": "" if row.kind else row.detail,
        "components": own,
    }


def _described(registered: Registered, rows: Mapping[Any, ListedComponent]) -> dict[str, Any]:
    entry = registered.entry
    row = rows[entry.group, entry.name, registered.plugin.distribution]
    return {
        "kind": entry.group,
        "name": entry.name,
        "plugin": row.plugin,
        "distribution": row.distribution,
        "status": row.status,
        "detail": row.detail,
        "summary": entry.summary,
        "factory": entry.factory,
        "requires": list(entry.requires),
        "chosen_with": f"{entry.group}=[{entry.name}]" if entry.group in SEVERAL else f"{entry.group}={entry.name}",
        "key": settings_key(entry.group, entry.name),
        "settings": [asdict(field) for field in setting_fields(entry.config)],
    }


def _lines(plugin: Mapping[str, Any]) -> Iterator[str]:
    yield f"plugin {plugin['plugin']} ({plugin['distribution']} {plugin['version']})"
    yield f"  entry point   {plugin['entry_point']}"
    yield f"  status        {plugin['status']}{_told(plugin['detail'])}"
    for component in plugin["components"]:
        yield ""
        yield f"  {component['kind']} {component['name']}: {component['summary']}"
        yield f"    status      {component['status']}{_told(component['detail'])}"
        yield f"    choose with {shlex.quote(component['chosen_with'])}"
        yield f"    made by     {component['factory']}"
        yield f"    settings    {component['key']}.<name>=<value>"
        for field in component["settings"]:
            yield from _setting(field)


def _setting(field: Mapping[str, Any]) -> Iterator[str]:
    default = "required" if field["required"] else f"default {json.dumps(field['default'], default=str)}"
    parts = [field["type"], field["limits"], default]
    yield f"      {field['name']}: {', '.join(part for part in parts if part)}"
    yield from textwrap.wrap(field["doc"], WIDTH, initial_indent=" " * 10, subsequent_indent=" " * 10)


def _told(detail: str) -> str:
    return f": {detail}" if detail else ""
