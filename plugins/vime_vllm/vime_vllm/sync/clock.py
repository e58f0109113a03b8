"""The time that is left of a push."""

from __future__ import annotations

import time

OWN_SHARE = 0.9
"""Of the run's deadline for a push: what went wrong is told before the driver gives the trainer up."""
TOLD_SHARE = 0.25
"""Of a push's time, kept for engines to tell why they did not get a bucket."""
LEAST_S = 0.1


class Clock:
    """Counts down from now.

    Args:
        limit_s: seconds.
    """

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._end = time.monotonic() + limit_s

    def left(self) -> float:
        """Seconds until the end, and a moment when there are none."""
        return max(self._end - time.monotonic(), LEAST_S)

    def transfer(self) -> float:
        """Seconds that a collective may take: it ends before the answers are due."""
        return max(self.left() - TOLD_SHARE * self.limit_s, LEAST_S)
