"""Start a command such that it and everything it starts end with the process that owns it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from vime_core.cluster import guardian
from vime_core.cluster.keeper import KeeperClient
from vime_core.cluster.lifeline import Lifeline
from vime_core.cluster.witness import describe
from vime_core.errors import DeadlineError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

KILL_DEADLINE_S = 30.0
"""After SIGKILL a process may still be held by a device driver for some seconds."""
TWIN_DEADLINE_S = 10.0
"""For the inner guardian to end what it guards, when the outer one was killed."""
POLL_S = 0.02
TAIL_BYTES = 64 * 1024


class GuardedProcess:
    """A command in a session of its own, under a guardian process.

    Its whole tree - processes that are stopped or have left the session included - ends when the command exits, when
    `stop` is called, and when the owner dies in whatever way, SIGKILL included.
    """

    def __init__(self, command: Sequence[str], *, env: Mapping[str, str], log: Path, keeper: str | None = None) -> None:
        """Nothing runs before `start`.

        Args:
            command: Program and arguments; the program is looked up in `PATH`.
            env: The whole environment of the command.
            log: Its standard output and error are appended to this file.
            keeper: Address of this node's keeper, which then ends the process too should the driver vanish.
        """
        self._command = list(command)
        self._env = dict(env)
        self._log = log
        self._keeper = keeper
        self._process: subprocess.Popen[bytes] | None = None
        self._lifeline: Lifeline | None = None
        self._status: int | None = None
        self._guardian_was_killed = False
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start the command; a program that cannot be run shows as exit status 127 and a line in the log.

        Raises:
            VimeError: when the keeper does not take the registration; the command is then ended.
        """
        if self._process is not None:
            raise RuntimeError(f"{self._command[0]} was started before")
        self._log.parent.mkdir(parents=True, exist_ok=True)
        lifeline = Lifeline()
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", guardian.__file__, str(lifeline.read_end), *self._command],
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(lifeline.read_end,),
                start_new_session=True,
            )
        lifeline.handed_over()
        self._lifeline = lifeline
        if self._keeper is not None:
            self._register(self._keeper)

    @property
    def pid(self) -> int:
        """Process id of the guardian, which leads the command's session and process group."""
        if self._process is None:
            raise RuntimeError(f"{self._command[0]} was not started")
        return self._process.pid

    def poll(self) -> int | None:
        """The command's exit status (128 + n when signal n ended it), or None while it runs."""
        with self._lock:
            if self._status is None and self._process is not None and self._has_exited():
                self._finish(self._process)
            return self._status

    def end(self) -> str | None:
        """How it ended, e.g. `was killed by SIGKILL`, or None while it runs."""
        status = self.poll()
        if status is None:
            return None
        return f"lost its guardian, which {describe(status)}" if self._guardian_was_killed else describe(status)

    def wait(self, deadline_s: float) -> int:
        """Wait for the command to end by itself and return its exit status.

        Raises:
            DeadlineError: when it still runs after `deadline_s` seconds.
        """
        deadline = time.monotonic() + deadline_s
        while (status := self.poll()) is None:
            if time.monotonic() >= deadline:
                raise DeadlineError(
                    f"{self._command[0]} (pid {self.pid}) still runs after {deadline_s:g} s; its log is {self._log}"
                )
            time.sleep(POLL_S)
        return status

    def log_tail(self, lines: int = 20) -> str:
        """The last lines of the log."""
        try:
            with self._log.open("rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
                return "\n".join(deque(file.read().decode(errors="replace").splitlines(), maxlen=lines))
        except FileNotFoundError:
            return ""

    def stop(self, deadline_s: float) -> None:
        """End the command and all it started: SIGTERM, after `deadline_s` seconds SIGKILL. Safe to call twice.

        Raises:
            DeadlineError: when something survives SIGKILL.
        """
        if self._process is None or self._lifeline is None or self.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGTERM)
            os.killpg(self.pid, signal.SIGCONT)  # what was stopped ends in order too
        try:
            self.wait(deadline_s)
        except DeadlineError:
            self._lifeline.cut()
            self.wait(KILL_DEADLINE_S)

    def _register(self, address: str) -> None:
        try:
            KeeperClient(address).register_process(self.pid)
        except BaseException:
            self.stop(0)
            raise

    def _has_exited(self) -> bool:
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def _finish(self, process: subprocess.Popen[bytes]) -> None:
        """Reap the guardian. Before that its group cannot be anyone else's, so what is left of it can be killed."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        if self._lifeline is not None:
            self._lifeline.wait_for_end(TWIN_DEADLINE_S)
            self._lifeline.close()
        status = process.wait()
        self._guardian_was_killed = status < 0
        self._status = status if status >= 0 else 128 - status
