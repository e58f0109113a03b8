"""Observers: each is told of every stage and can change nothing but whether the run goes on."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

from vime_core.errors import PluginError, UserError
from vime_core.plugins.interfaces import Observer
from vime_core.randomness import random_state_kept

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from vime_core.types import Group


class Observers:
    """The chosen observers.

    Each gets copies of its own: what it does to them reaches neither the run nor another observer. Random numbers that
    it draws from the process's generators are put back.
    """

    def __init__(self, observers: Mapping[str, Callable[[], Observer]]) -> None:
        """Makes them.

        Args:
            observers: What makes each, by name.

        Raises:
            UserError: as a factory raised it.
            PluginError: names the one that failed in another way; so do the methods.
        """
        self._observers = {name: _make(name, make) for name, make in observers.items()}

    def run_started(self, config: Mapping[str, Any]) -> None:
        """Before step 0."""
        for name, observer in self._observers.items():
            _tell(name, observer, "run_started", deepcopy(config))

    def groups_scored(self, step: int, groups: Sequence[Group]) -> None:
        """After scoring, before filters."""
        for name, observer in self._observers.items():
            if not _looks_away(observer):
                _tell(name, observer, "groups_scored", step, deepcopy(groups))

    def step_finished(self, step: int, metrics: Mapping[str, float]) -> str | None:
        """After the metrics of a step are written.

        Returns:
            Who wants to end the run, and why; None when nobody does. Everyone is told, the first reason counts.
        """
        reasons = []
        for name, observer in self._observers.items():
            reason = _tell(name, observer, "step_finished", step, dict(metrics))
            if reason is None:
                continue
            if not isinstance(reason, str) or not reason.strip():
                cause = f"it returned {reason!r:.80}, which must be None or why the run should end"
                raise _failed(name, f"step_finished at step {step}", cause)
            reasons.append(f"observer {name}: {' '.join(reason.split())}")
        return reasons[0] if reasons else None

    def run_finished(self, reason: str) -> list[PluginError]:
        """At the end. Everyone is told; returns what those that failed raised."""
        failures = []
        for name, observer in self._observers.items():
            try:
                _tell(name, observer, "run_finished", reason)
            except PluginError as error:
                failures.append(error)
        return failures


def in_one_line(error: BaseException) -> str:
    """An exception with its type, without line breaks."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def _make(name: str, make: Callable[[], Observer]) -> Observer:
    try:
        return make()
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise _failed(name, "its start", in_one_line(error)) from error


def _looks_away(observer: Observer) -> bool:
    """Whether copies of the groups, which may be large, would be made for nobody."""
    return getattr(type(observer), "groups_scored", None) is Observer.groups_scored


def _tell(name: str, observer: Observer, method: str, *arguments: Any) -> Any:
    try:
        with random_state_kept():
            return getattr(observer, method)(*arguments)
    except (Exception, SystemExit) as error:
        step = f" at step {arguments[0]}" if isinstance(arguments[0], int) else ""
        raise _failed(name, f"{method}{step}", in_one_line(error)) from error


def _failed(name: str, what: str, cause: str) -> PluginError:
    return PluginError(f"observer {name} failed in {what}: {cause}; mend it or leave it out of observer=[...]")
