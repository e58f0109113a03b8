"""From a plugin that was found to its entries, or to the reason why there are none."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from dataclasses import dataclass
from inspect import get_annotations
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from vime_core.errors import PluginError
from vime_core.plugins.blame import blame
from vime_core.plugins.hookcheck import check_hooks
from vime_core.plugins.kinds import AUTO, HOOK_ENTRIES, config_base

if TYPE_CHECKING:
    import pluggy

    from vime_core.plugins.discovery import Candidate, PluginInfo
    from vime_core.plugins.entries import Entry


@dataclass(frozen=True, slots=True)
class Registered:
    """An entry and the plugin that returned it."""

    entry: Entry
    plugin: PluginInfo

    def unavailable(self) -> str | None:
        """Why the component cannot be used here, or None."""
        try:
            with redirect_stdout(sys.stderr):
                return self.entry.unavailable()
        except Exception as error:
            return f"its probe failed: {first_line(error)}"

    def build(self, *arguments: Any, **named: Any) -> Any:
        """Import the factory and call it; an exception tells the plugin.

        Raises:
            PluginError: when the factory cannot be imported.
            Exception: whatever the factory raises, with a note.
        """
        what = f"{self.entry.kind} {self.entry.name!r}"
        try:
            with redirect_stdout(sys.stderr):
                factory = self.entry.load()
        except (ImportError, AttributeError) as error:
            raise PluginError(
                f"{what} of plugin {self.plugin}: cannot import {self.entry.factory}: {first_line(error)}; "
                "--traceback shows where"
            ) from error
        with blame(self.plugin, what):
            return factory(*arguments, **named)


@dataclass(frozen=True, slots=True)
class Failure:
    """A plugin that could not be loaded; nothing of it can be selected."""

    plugin: PluginInfo
    cause: str
    """One line."""
    error: BaseException
    """What was raised; its traceback leads to the fault."""

    def __str__(self) -> str:
        return f"plugin {self.plugin} failed: {self.cause}"


class _HookError(Exception):
    """A hook raised; the cause is what it raised."""


def register(manager: pluggy.PluginManager, candidate: Candidate) -> list[Registered] | Failure:
    """Import, check and register one plugin, and collect its entries: all of them or none.

    What it prints goes to stderr: stdout belongs to the command.
    """
    info = candidate.info
    try:
        with redirect_stdout(sys.stderr):
            return _register(manager, candidate)
    except _HookError as error:
        cause = error.__cause__ or error
        return Failure(info, f"{first_line(cause)}, in hook {error}", cause)
    except PluginError as error:
        return Failure(info, str(error), error)
    except (Exception, SystemExit) as error:
        return Failure(info, first_line(error), error)


def _register(manager: pluggy.PluginManager, candidate: Candidate) -> list[Registered]:
    plugin = candidate.load()
    check_hooks(plugin)
    if manager.is_registered(plugin):
        return _entries(manager, plugin, candidate.info)
    manager.register(plugin, name=f"{candidate.info.distribution}:{candidate.info.name}")
    try:
        return _entries(manager, plugin, candidate.info)
    except Exception:
        manager.unregister(plugin)
        raise


def first_line(error: BaseException) -> str:
    """An exception in one line: its type and the first line of its text."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def _entries(manager: pluggy.PluginManager, plugin: object, info: PluginInfo) -> list[Registered]:
    found: list[Registered] = []
    for caller in manager.get_hookcallers(plugin) or ():
        if not caller.has_spec():  # an optional hook of a later version
            continue
        for implementation in caller.get_hookimpls():
            if implementation.plugin is plugin:
                entries = _call(caller.name, implementation.function, info)
                found += [Registered(entry, info) for entry in entries]
    names = Counter((registered.entry.kind, registered.entry.name) for registered in found)
    for (kind, name), count in names.items():
        if count > 1:
            raise PluginError(f"{kind} {name!r} is returned {count} times; an entry needs a name of its own")
    return found


def _call(hook: str, function: Callable[[], Any], info: PluginInfo) -> list[Entry]:
    expected = HOOK_ENTRIES[hook].__name__
    try:
        with blame(info, f"hook {hook}"):
            returned = function()
            entries = list(returned) if isinstance(returned, Iterable) else None
    except Exception as error:
        raise _HookError(hook) from error
    if entries is None:
        raise PluginError(f"hook {hook} must return a list of {expected}, not {returned!r}")
    for entry in entries:
        _check_entry(hook, entry)
    return entries


def _check_entry(hook: str, entry: Entry) -> None:
    expected = HOOK_ENTRIES[hook]
    if type(entry) is not expected:
        raise PluginError(f"hook {hook} must return {expected.__name__} objects, not {entry!r}")
    if entry.name == AUTO:
        raise PluginError(f"{entry.kind} entry name {AUTO!r} is reserved")
    base = config_base(expected)
    if not issubclass(entry.config, base):
        raise PluginError(
            f"{entry.kind} entry {entry.name!r}: its config {entry.config.__name__} must derive from "
            f"{base.__module__}.{base.__name__}"
        )
    for config in entry.config.__mro__:
        if issubclass(config, base) and get_annotations(config) and "__dataclass_fields__" not in vars(config):
            raise PluginError(
                f"{entry.kind} entry {entry.name!r}: its config {config.__name__} is no dataclass, so its settings "
                "would be lost; put @dataclass above the class"
            )
    try:
        OmegaConf.structured(entry.config)
    except OmegaConfBaseException as error:
        raise PluginError(
            f"{entry.kind} entry {entry.name!r}: its config {entry.config.__name__} cannot be configured: "
            f"{str(error).splitlines()[0]}"
        ) from error
