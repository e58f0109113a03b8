"""How something public ends: announced with the version that removes it, two minor releases before."""

from __future__ import annotations

import functools
import warnings
from typing import TYPE_CHECKING, Any, TypeVar, cast

from vime_core.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable

Decorated = TypeVar("Decorated")

NOTICE = 2
"""Minor releases between announcement and removal."""


class VimeDeprecationWarning(DeprecationWarning):
    """Something public that a later release removes; pytest shows it, and vime's own tests refuse it."""


def deprecated(*, since: str, removed_in: str, instead: str) -> Callable[[Decorated], Decorated]:
    """Mark a public function or class: using it warns once a place.

    Args:
        since: the release that announces it, e.g. `0.3`.
        removed_in: the release that no longer has it; at least two minor releases later.
        instead: what to use, e.g. `vime_core.option`.

    Raises:
        ValueError: when the notice is too short.
        RuntimeError: when this release is the one that must remove it.
    """
    _check_notice(since, removed_in)

    def decorate(target: Decorated) -> Decorated:
        name = f"{getattr(target, '__module__', '')}.{getattr(target, '__qualname__', '')}"
        _check_due(name, removed_in)
        told = _told(name, since, removed_in, instead)
        if isinstance(target, type):
            _warn_on_use(target, told)
            return target
        return cast("Decorated", _warning_function(target, told))

    return decorate


def warn_deprecated(what: str, *, since: str, removed_in: str, instead: str) -> None:
    """Warn of an argument, a setting or a value, at the caller's caller.

    Raises:
        ValueError, RuntimeError: as `deprecated`.
    """
    _check_notice(since, removed_in)
    _check_due(what, removed_in)
    warnings.warn(_told(what, since, removed_in, instead), VimeDeprecationWarning, stacklevel=3)


def _warn_on_use(target: type, told: str) -> None:
    begin: Any = target.__init__  # type: ignore[misc]

    @functools.wraps(begin)
    def warned(self: Any, *arguments: Any, **named: Any) -> None:
        warnings.warn(told, VimeDeprecationWarning, stacklevel=2)
        begin(self, *arguments, **named)

    target.__init__ = warned  # type: ignore[misc]


def _warning_function(target: Any, told: str) -> Any:
    @functools.wraps(target)
    def warned(*arguments: Any, **named: Any) -> Any:
        warnings.warn(told, VimeDeprecationWarning, stacklevel=2)
        return target(*arguments, **named)

    return warned


def _told(what: str, since: str, removed_in: str, instead: str) -> str:
    return f"{what} is deprecated since vime-core {since} and is removed in {removed_in}; use {instead}"


def _check_notice(since: str, removed_in: str) -> None:
    announced, removed = _release(since), _release(removed_in)
    if removed < (announced[0] + 1, 0) and removed < (announced[0], announced[1] + NOTICE):
        raise ValueError(f"removed_in={removed_in} must be {NOTICE} minor releases after since={since}, or a major one")


def _check_due(what: str, removed_in: str) -> None:
    if _release(__version__) >= _release(removed_in):
        raise RuntimeError(f"{what} was to be removed in {removed_in}, and this is vime-core {__version__}: remove it")


def _release(version: str) -> tuple[int, int]:
    major, minor, *_ = version.split(".")
    return int(major), int(minor)
