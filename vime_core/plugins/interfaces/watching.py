"""Who is told how a run goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vime_core.types import Group


class Tracker(Protocol):
    """Receives metrics."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """One step's metrics."""
        ...

    def close(self) -> None:
        """Flush."""
        ...


class Observer:
    """Told of each stage; override what is needed.

    An observer can end the run, or change nothing: what it is given are copies. An exception stops the run, and names
    the observer.
    """

    def run_started(self, config: Mapping[str, Any]) -> None:
        """Before step 0."""

    def groups_scored(self, step: int, groups: Sequence[Group]) -> None:
        """After scoring, before filters."""

    def step_finished(self, step: int, metrics: Mapping[str, float]) -> str | None:
        """After the step's metrics are written.

        Returns:
            None to go on, else why the run should end: it saves a checkpoint and ends as if this had been its last
            step, with exit status 0.
        """
        return None

    def run_finished(self, reason: str) -> None:
        """At the end: `done`, `observer <name>: <its reason>`, `interrupted` or the first line of the error."""
