"""Whether a server is alive: its processes and its health route, looked at from its owner."""

from __future__ import annotations

import contextlib
import signal
import time
from collections import deque
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
MOST_DEAD = 32
"""The last to die that are remembered: servers start helpers, whose end means nothing."""
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
        self._server: Witness | None = None
        self._dead: deque[Witness] = deque(maxlen=MOST_DEAD)
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
        # A server goes down in order when one of its processes is killed, and its log does not say by what.
        how = end if KILLED in end else (self._first_kill() or end)
        return f"{self._name} {how} (log: {self._log})" if KILLED in how else f"{self._name} {how}: {self.cause()}"

    def cause(self) -> str:
        """What the log says of it, and where the log is."""
        return f"{cause_in(self._process.log_tail(LINES))} (log: {self._log})"

    def _silence(self) -> str | None:
        self._meet()
        stopped = [witness for witness in self._members.values() if witness.is_stopped()]
        if not self._patience.is_over(not stopped and self._answers()):
            return None
        # On a busy machine a server may take longer to go down with what was killed.
        lost = self._first_kill()
        told = (
            stopped_answering(self._name, self._patience.limit_s, stopped) if lost is None else f"{self._name} {lost}"
        )
        return f"{told} (log: {self._log})"

    def _meet(self) -> None:
        """Get to know the processes that the server has started meanwhile."""
        guardian = processes.identify(self._process.pid)
        found = processes.descendants(self._process.pid) | ({guardian} if guardian else set())
        for process in found - self._members.keys():
            with contextlib.suppress(ProcessLookupError):
                self._members[process] = Witness(process.pid)
        if self._server is None:
            inner = {child for child in processes.children(self._process.pid) if child in self._members}
            started = {grandchild for child in inner for grandchild in processes.children(child.pid)}
            self._server = next((self._members[process] for process in started if process in self._members), None)

    def _notice_deaths(self) -> None:
        """Of what died before the server did; after that its guardians kill the rest."""
        if self._server is None or self._server.has_ended():
            return
        for process, witness in list(self._members.items()):
            if witness.has_ended():
                self._dead.append(witness)
                del self._members[process]

    def _first_kill(self) -> str | None:
        """Known of those of whose end the server has taken note; all of them, when it has ended itself."""
        for witness in self._dead:
            status = witness.status()
            if status is not None and status > SIGNALLED:
                return f"lost {witness.title} (process {witness.pid}), which {describe(status)}"
        return None
