"""Makes an exception tell which plugin it came from."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from vime_core.errors import UserError
from vime_core.plugins.discovery import CORE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vime_core.plugins.discovery import PluginInfo


@contextmanager
def blame(plugin: PluginInfo, what: str) -> Iterator[None]:
    """Let exceptions pass, with a note that names the plugin, its version and what it was doing.

    What core tells the user of a mistake gets none.

    Args:
        plugin: the plugin whose code runs in the block.
        what: the hook or the component, e.g. `hook vime_rewards` or `reward 'acme'`.
    """
    try:
        yield
    except Exception as error:
        if plugin.name == CORE and isinstance(error, UserError):  # the user's mistake, told by vime itself
            raise
        add_note(error, f"raised by plugin {plugin}, in {what}")
        raise


def add_note(error: Exception, note: str) -> None:
    """Add a line that is printed behind the error."""
    # Python 3.10 has no add_note; tracebacks show the attribute from 3.11 on.
    notes: list[str] = getattr(error, "__notes__", [])
    error.__notes__ = [*notes, note]
