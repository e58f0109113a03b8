"""What a name on the command line means: a plugin, a distribution, or the components of that name."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

from vime_core.errors import PluginError
from vime_core.plugins.listing import list_components

if TYPE_CHECKING:
    from vime_core.plugins.listing import ListedComponent
    from vime_core.plugins.manager import Plugins
    from vime_core.plugins.registration import Registered


@dataclass(frozen=True, slots=True)
class Choice:
    """Everything that has a name."""

    registered: list[Registered]
    """Components."""
    others: list[ListedComponent]
    """Plugins without components: failed, blocked, empty."""


def choose(plugins: Plugins, name: str | None = None) -> Choice:
    """Find what a name means: the components of a plugin or distribution, else the components of that name.

    Args:
        plugins: the plugins there are.
        name: None means everything that is not blocked.

    Raises:
        PluginError: when nothing has that name; tells the closest.
    """
    bare = [row for row in list_components(plugins) if not row.kind]
    if name is None:
        return Choice(list(plugins.registered), [row for row in bare if row.status != "blocked"])
    of_plugin = [item for item in plugins.registered if name in (item.plugin.name, item.plugin.distribution)]
    others = [row for row in bare if name in (row.plugin, row.distribution)]
    if of_plugin or others:
        return Choice(of_plugin, others)
    named = [item for item in plugins.registered if item.entry.name == name]
    if not named:
        raise _unknown(plugins, bare, name)
    return Choice(named, [])


def _unknown(plugins: Plugins, bare: list[ListedComponent], name: str) -> PluginError:
    names = {text for row in bare for text in (row.plugin, row.distribution)}
    for item in plugins.registered:
        names |= {item.plugin.name, item.plugin.distribution, item.entry.name}
    close = get_close_matches(name, sorted(names), n=1)
    hint = f"did you mean {close[0]}?" if close else "vime plugins list shows what there is"
    return PluginError(f"there is no plugin, distribution or component {name!r}; {hint}")
