"""Takes a filter's answers only when they say what is meant."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vime_core.errors import PluginError

if TYPE_CHECKING:
    from vime_core.plugins.interfaces import Filter
    from vime_core.plugins.registration import Registered
    from vime_core.types import Group


class CheckedFilter:
    """Implements `Filter`: what another filter says, once it is None or a reason.

    Without the check, one that answers True for a group to keep would drop every group, and blame the data.

    Args:
        name: as in `filter=[<name>]`.
        registered: its entry, for messages.
        checked: the filter.
    """

    def __init__(self, name: str, registered: Registered, checked: Filter) -> None:
        self._name = name
        self._plugin = registered.plugin
        self._checked = checked

    def keep(self, group: Group) -> str | None:
        """See `Filter.keep`.

        Raises:
            PluginError: when the answer is neither None nor a text.
        """
        reason = self._checked.keep(group)
        if reason is None or (isinstance(reason, str) and reason.strip()):
            return reason
        raise PluginError(
            f"filter {self._name} failed: it returned {reason!r:.80}, which must be None or why the group is dropped; "
            f"mend it in plugin {self._plugin} or leave it out of filter=[...]"
        )
