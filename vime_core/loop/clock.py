"""Where the time of a step goes."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class StageClock:
    """Wall-clock seconds by stage; stages do not nest. One clock a step."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Adds the time of the block to stage `name`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - start

    def seconds(self, name: str) -> float:
        """Time in stage `name` so far."""
        return self._seconds.get(name, 0.0)

    def metrics(self) -> dict[str, float]:
        """`perf/<stage>_time_s` of each stage, and `perf/step_time_s` since the clock was made."""
        times = {f"perf/{name}_time_s": seconds for name, seconds in self._seconds.items()}
        return times | {"perf/step_time_s": time.perf_counter() - self._start}
