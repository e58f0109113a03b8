"""Whether a server is alive: its processes and its health route, looked at from its owner."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

from vime_core.cluster import processes
from vime_core.cluster.witness import Patience, Witness, describe, stopped_answering
from vime_vllm.logs import LINES, cause_in

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable
    from pathlib import Path

    from vime_core.cluster.guard import GuardedProcess

POLL_S = 0.1
LOOK_S = 1.0
"""Between two looks at all processes of a server, and between two health checks."""
PROBE_DEADLINE_S = 5.0
"""For one health check."""
SIGNALLED = 128
KILLED = describe(SIGNALLED + signal.SIGKILL)
"""Of which no log knows."""


class Vitals:
    """A guarded server and all processes below it.

    Args:
        name: of the server.
        process: the server.
        log: its log, which may hold the cause of its end.
        answers: asks its health route, for `PROBE_DEADLINE_S` at most.
        limit_s: how long health checks may stay unanswered, or a process of the server be stopped.
    """

    def __init__(
        self, name: str, process: GuardedProcess, log: Path, answers: Callable[[], bool], limit_s: float
    ) -> None:
        self._name = name
        self._process = process
        self._log = log
        self._answers = answers
        self._patience = Patience(limit_s, longest_step_s=LOOK_S + PROBE_DEADLINE_S)
        self._members: dict[processes.ProcessId, Witness] = {}
        self._killed: list[str] = []
        self._looked = 0.0

    def watch(self, closing: threading.Event) -> str | None:
        """Return when the server ends or is silent for too long: what is known of it; None once `closing` is set."""
        while not closing.wait(POLL_S):
            self._notice_deaths()
            death = self.death()
            if death is None and time.monotonic() - self._looked >= LOOK_S:
                death = self._silence()
                self._looked = time.monotonic()
            if death is not None:
                return None if closing.is_set() else death
        return None

    def death(self) -> str | None:
        """What is known of the server's end, or None while it runs."""
        end = self._process.end()
        if end is None:
            return None
        self._notice_deaths()
        # A server goes down in order when one of its processes is killed, and its log does not say by what.
        how = self._killed[0] if self._killed else end
        return f"{self._name} {how} (log: {self._log})" if KILLED in how else f"{self._name} {how}: {self.cause()}"

    def cause(self) -> str:
        """What the log says of it, and where the log is."""
        return f"{cause_in(self._process.log_tail(LINES))} (log: {self._log})"

    def _silence(self) -> str | None:
        self._meet()
        stopped = [witness for witness in self._members.values() if witness.is_stopped()]
        if not self._patience.is_over(not stopped and self._answers()):
            return None
        return f"{stopped_answering(self._name, self._patience.limit_s, stopped)} (log: {self._log})"

    def _meet(self) -> None:
        """Get to know the processes that the server has started meanwhile."""
        guardian = processes.identify(self._process.pid)
        found = processes.descendants(self._process.pid) | ({guardian} if guardian else set())
        for process in found - self._members.keys():
            try:
                self._members[process] = Witness(process.pid)
            except ProcessLookupError:
                continue

    def _notice_deaths(self) -> None:
        for process, witness in list(self._members.items()):
            if not witness.has_ended():
                continue
            status = witness.status()
            if status is None and processes.is_unreaped(process):
                continue
            if status is not None and status > SIGNALLED and process.pid != self._process.pid:
                self._killed.append(f"lost {witness.title} (process {witness.pid}), which {describe(status)}")
            witness.close()
            del self._members[process]
