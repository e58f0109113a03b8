"""Tells everyone who wants to know how the run goes: the run folder, the terminal, trackers and observers."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from vime_core.errors import PluginError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from vime_core.plugins.interfaces import Observer, Tracker
    from vime_core.run.metrics import MetricsWriter
    from vime_core.run.progress import Progress
    from vime_core.types import Group

log = logging.getLogger(__name__)

DONE = "done"
"""Reason of a run that ended by itself."""


class Reporter:
    """Metrics go to metrics.jsonl, the terminal, trackers and observers, in this order.

    A tracker that fails is named once and switched off; an observer that fails stops the run.
    """

    def __init__(
        self,
        metrics: MetricsWriter,
        progress: Progress,
        trackers: Mapping[str, Tracker],
        observers: Mapping[str, Observer],
    ) -> None:
        """Closes `metrics`, `progress` and `trackers` with itself.

        Args:
            metrics: Of the run folder.
            progress: Terminal.
            trackers: By name.
            observers: By name.
        """
        self._metrics = metrics
        self._progress = progress
        self._trackers = dict(trackers)
        self._observers = dict(observers)

    def run_started(self, config: Mapping[str, Any]) -> None:
        """Before step 0.

        Raises:
            PluginError: names an observer that failed; so do the following methods.
        """
        self._tell_observers("run_started", lambda observer: observer.run_started(config))

    def groups_scored(self, step: int, groups: Sequence[Group]) -> None:
        """After scoring, before filters."""
        self._tell_observers(f"groups_scored at step {step}", lambda observer: observer.groups_scored(step, groups))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """The metrics of a finished step."""
        self._metrics.write(step, metrics)
        self._progress.step(step, metrics)
        log.info("step %d: %s", step, ", ".join(f"{key} {value:.6g}" for key, value in metrics.items()))
        self._tell_trackers(lambda tracker: tracker.log(step, metrics))
        self._tell_observers(f"step_finished at step {step}", lambda observer: observer.step_finished(step, metrics))

    def note(self, message: str) -> None:
        """A line for the terminal and log.txt."""
        log.info("%s", message)
        self._progress.note(message)

    def run_finished(self, reason: str) -> None:
        """At the end: `done`, `interrupted` or the first line of the error.

        Every observer is told. One that fails is only named when the run has failed anyway: the first cause is what
        the user sees.
        """
        failures = []
        for name in self._observers:
            try:
                self._tell_observer(name, "run_finished", lambda observer: observer.run_finished(reason))
            except PluginError as error:
                self._warn(str(error), error)
                failures.append(error)
        if failures and reason == DONE:
            raise failures[0]

    def close(self) -> None:
        """Close everything; safe to call twice."""
        self._tell_trackers(lambda tracker: tracker.close())
        self._trackers.clear()
        self._progress.close()
        self._metrics.close()

    def _tell_trackers(self, tell: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self._trackers.items()):
            try:
                tell(tracker)
            except Exception as error:  # whatever a tracker raises, the run is worth more
                del self._trackers[name]
                self._warn(f"tracker {name} failed and is switched off: {_in_one_line(error)}", error)

    def _tell_observers(self, what: str, tell: Callable[[Observer], None]) -> None:
        for name in self._observers:
            self._tell_observer(name, what, tell)

    def _tell_observer(self, name: str, what: str, tell: Callable[[Observer], None]) -> None:
        try:
            tell(self._observers[name])
        except Exception as error:
            raise PluginError(
                f"observer {name} failed in {what}: {_in_one_line(error)}; mend it or leave it out of observer=[...]"
            ) from error

    def _warn(self, message: str, cause: Exception) -> None:
        log.warning("%s", message, exc_info=cause)
        self._progress.note(f"warning: {message}")


def _in_one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
