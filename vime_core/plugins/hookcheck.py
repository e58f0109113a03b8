"""Checks what a plugin declares before it is registered. pluggy lets each of these mistakes pass in silence."""

from __future__ import annotations

import inspect
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from vime_core.errors import PluginError
from vime_core.plugins import hookspecs
from vime_core.plugins.hookspecs import PROJECT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PREFIX = f"{PROJECT}_"
"""Functions of a plugin with this prefix are hooks, or mistakes."""

HOOKS: dict[str, Callable[..., Any]] = {
    name: function for name, function in vars(hookspecs).items() if hasattr(function, f"{PROJECT}_spec")
}
"""All hooks, by name."""


def check_hooks(plugin: object) -> None:
    """Check every hook of a plugin: marked, known, with the arguments of its specification.

    Raises:
        PluginError: names the function, what was expected and the closest hook.
    """
    for name, function in _functions(plugin):
        marker = getattr(function, f"{PROJECT}_impl", None)
        if marker is None:
            if name.startswith(PREFIX):
                raise PluginError(f"function {name} is not marked with @hookimpl{_closest(name, misspelt_only=True)}")
            continue
        hook = marker.get("specname") or name
        if hook in HOOKS:
            _check_signature(hook, function, marker)
        elif not marker.get("optionalhook"):
            raise PluginError(f"there is no hook {hook}{_closest(hook)}")


def _functions(plugin: object) -> Iterator[tuple[str, Any]]:
    for name in dir(plugin):
        if isinstance(inspect.getattr_static(type(plugin), name, None), property):
            continue
        attribute = getattr(plugin, name)
        if inspect.isroutine(attribute):
            yield name, attribute


def _check_signature(hook: str, function: Callable[..., Any], marker: dict[str, Any]) -> None:
    if marker.get("wrapper") or marker.get("hookwrapper"):
        raise PluginError(f"hook {hook} must be a plain function, not a wrapper: components are chosen by name")
    specified = inspect.signature(HOOKS[hook]).parameters
    expected = f"expected {hook}({', '.join(specified)})"
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.default is not inspect.Parameter.empty:
            raise PluginError(f"hook {hook}: argument {name!r} must not have a default; {expected}")
        if name not in specified:
            raise PluginError(f"hook {hook} has an unknown argument {name!r}; {expected}")


def _closest(name: str, *, misspelt_only: bool = False) -> str:
    if misspelt_only and name in HOOKS:
        return ""
    close = get_close_matches(name, HOOKS, n=1)
    if not close:
        return f"; there are {', '.join(sorted(HOOKS))}"
    return f"; did you mean {close[0]}({', '.join(inspect.signature(HOOKS[close[0]]).parameters)})?"
