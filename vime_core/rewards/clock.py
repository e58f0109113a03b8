"""How long a process has really worked, on a machine with too few cores for all."""

from __future__ import annotations

import os
import time
from pathlib import Path

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class ActiveClock:
    """Seconds that the main thread of a process ran or was blocked; not those it waited for a core.

    A reward that is asleep is as late as one that computes, but one that is ready to run and gets no core is not late
    at all: on a busy machine the wall clock would turn right answers into timeouts. The kernel counts the waiting in
    /proc/<pid>/schedstat; where that file is missing, the seconds are those of the process's CPU time.
    """

    def __init__(self, pid: int) -> None:
        """Start counting; the process must not be reaped while the clock is in use."""
        self._stat = Path(f"/proc/{pid}/stat")
        self._schedstat = Path(f"/proc/{pid}/schedstat")
        self._counts_waiting = self._schedstat.exists()
        self._wall_start = time.monotonic()
        self._start = self._waited() if self._counts_waiting else self._cpu()

    def elapsed(self) -> float:
        """Active seconds since the clock was made."""
        if self._counts_waiting:
            return self.wall() - (self._waited() - self._start)
        return self._cpu() - self._start

    def wall(self) -> float:
        """Seconds since the clock was made, waiting for a core included."""
        return time.monotonic() - self._wall_start

    def _waited(self) -> float:
        """Second field, nanoseconds on a run queue: Documentation/scheduler/sched-stats.rst of Linux."""
        return int(self._schedstat.read_text().split()[1]) / 1e9

    def _cpu(self) -> float:
        """User and system time, fields 14 and 15 of proc_pid_stat(5)."""
        fields = self._stat.read_text(errors="replace").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND
