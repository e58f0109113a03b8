"""Tells everyone who wants to know how the run goes: the run folder, the terminal, trackers and observers."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from vime_core.errors import UserError
from vime_core.run.observers import Observers, in_one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from vime_core.plugins.interfaces import Observer, Tracker
    from vime_core.run.metrics import MetricsWriter
    from vime_core.run.progress import Progress
    from vime_core.types import Group

log = logging.getLogger(__name__)

ENDED = "the run has ended: "
"""The last event of a run in log.txt, before how: `DONE`, `FAILED`, `INTERRUPTED`, or why an observer ended it."""

DONE = "done"
FAILED = "failed"
INTERRUPTED = "interrupted"
"""Reason of a run that ended by itself."""


class Reporter:
    """Metrics go to metrics.jsonl, the terminal, trackers and observers, in this order.

    A tracker that fails is named once and switched off; an observer that fails stops the run, and one may end it.
    """

    def __init__(
        self,
        metrics: MetricsWriter,
        progress: Progress,
        trackers: Mapping[str, Callable[[], Tracker]],
        observers: Mapping[str, Callable[[], Observer]],
    ) -> None:
        """Closes `metrics`, `progress` and `trackers` with itself.

        Args:
            metrics: Of the run folder.
            progress: Terminal.
            trackers: What makes each, by name.
            observers: The same.

        Raises:
            UserError: when an observer cannot be made, or a tracker's settings are wrong. A tracker that cannot be
                made for another reason is switched off.
        """
        self._metrics = metrics
        self._progress = progress
        self._stop_reason: str | None = None
        self._trackers: dict[str, Tracker] = {}
        try:
            self._observers = Observers(observers)
            for name, make in trackers.items():
                self._add_tracker(name, make)
        except BaseException:
            self.close()
            raise

    @property
    def stop_reason(self) -> str | None:
        """Which observer wants to end the run, and why; None while it goes on."""
        return self._stop_reason

    def run_started(self, config: Mapping[str, Any]) -> None:
        """Before step 0.

        Raises:
            PluginError: names an observer that failed; so do the following methods.
        """
        self._observers.run_started(config)

    def groups_scored(self, step: int, groups: Sequence[Group]) -> None:
        """After scoring, before filters."""
        self._observers.groups_scored(step, groups)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """The metrics of a finished step."""
        self._metrics.write(step, metrics)
        self._progress.step(step, metrics)
        log.info("step %d: %s", step, ", ".join(f"{key} {value:.6g}" for key, value in metrics.items()))
        self._tell_trackers(lambda tracker: tracker.log(step, dict(metrics)))
        reason = self._observers.step_finished(step, metrics)
        if reason is not None and self._stop_reason is None:
            self._stop_reason = reason
            self.note(f"stopping after step {step}, {reason}")

    def note(self, message: str) -> None:
        """A line for the terminal and log.txt."""
        log.info("%s", message)
        self._progress.note(message)

    def run_finished(self, reason: str) -> None:
        """At the end: `done`, `stop_reason`, `interrupted` or the first line of the error.

        Every observer is told. One that fails is only named when the run has failed anyway: the first cause is what
        the user sees.
        """
        failures = self._observers.run_finished(reason)
        for failure in failures:
            self._warn(str(failure), failure)
        if failures and reason in (DONE, self._stop_reason):
            raise failures[0]

    def close(self) -> None:
        """Close everything; safe to call twice."""
        self._tell_trackers(lambda tracker: tracker.close())
        self._trackers.clear()
        self._progress.close()
        self._metrics.close()

    def _add_tracker(self, name: str, make: Callable[[], Tracker]) -> None:
        try:
            self._trackers[name] = make()
        except UserError:
            raise
        except (Exception, SystemExit) as error:
            self._switched_off(name, error)

    def _tell_trackers(self, tell: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self._trackers.items()):
            try:
                tell(tracker)
            except (Exception, SystemExit) as error:  # whatever a tracker raises, the run is worth more
                del self._trackers[name]
                self._switched_off(name, error)

    def _switched_off(self, name: str, error: BaseException) -> None:
        self._warn(f"tracker {name} failed and is switched off: {in_one_line(error)}", error)

    def _warn(self, message: str, cause: BaseException) -> None:
        log.warning("%s", message, exc_info=cause)
        self._progress.note(f"warning: {message}")
