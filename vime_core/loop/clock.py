"""Where the time of a step goes."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

OTHER = "other"
"""The stage outside all others."""


class StageClock:
    """Wall-clock seconds by stage. At every moment exactly one stage runs, so that their times add up to the whole.

    A stage within another interrupts it.

    Args:
        entered: told the name of each stage that starts.
    """

    def __init__(self, entered: Callable[[str], None] | None = None) -> None:
        self._entered = entered
        self._running = [OTHER]
        self._seconds: dict[str, float] = {}
        self._charged_until = self._lap_start = time.perf_counter()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Counts the time of the block as stage `name`."""
        self._charge()
        self._running.append(name)
        if self._entered is not None:
            self._entered(name)
        try:
            yield
        finally:
            self._charge()
            self._running.pop()

    def move(self, seconds: float, *, source: str, target: str) -> None:
        """Counts `seconds` of stage `source`, which has ended, as stage `target`."""
        self._seconds[source] -= seconds
        self._seconds[target] = self._seconds.get(target, 0.0) + seconds

    def lap(self) -> dict[str, float]:
        """`perf/<stage>_time_s` of each stage since the last lap, and `perf/step_time_s` of all of them."""
        self._charge()
        times = {f"perf/{name}_time_s": seconds for name, seconds in self._seconds.items()}
        times["perf/step_time_s"] = self._charged_until - self._lap_start
        self._seconds, self._lap_start = {}, self._charged_until
        return times

    def _charge(self) -> None:
        now = time.perf_counter()
        stage = self._running[-1]
        self._seconds[stage] = self._seconds.get(stage, 0.0) + now - self._charged_until
        self._charged_until = now
