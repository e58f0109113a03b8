"""One process of this node, seen by somebody who is not its parent: does it run, is it stopped, how did it end?"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import struct
import time
from typing import TYPE_CHECKING

from vime_core.cluster import processes

if TYPE_CHECKING:
    from collections.abc import Sequence

_INFO = struct.Struct("=QQ11Ii")
"""`struct pidfd_info` of linux/pidfd.h in its first version: mask, cgroup, eleven ids, wait status."""
_INFO_EXIT = 1 << 3
_GET_INFO = 3 << 30 | _INFO.size << 16 | 0xFF << 8 | 11
"""`_IOWR(PIDFS_IOCTL_MAGIC, 11, struct pidfd_info)`"""

LONGEST_STEP_S = 2.0
"""What a process that is looked at once or twice a second can have been stopped between two looks."""
REAP_DEADLINE_S = 2.0
"""For a parent to take note of the end of its child."""


class Witness:
    """Holds a process by a descriptor, so that its pid, used again, is never taken for it."""

    def __init__(self, pid: int) -> None:
        """Args: the process id.

        Raises:
            ProcessLookupError: when there is no such process.
        """
        self.pid = pid
        self._descriptor = -1
        self._descriptor = os.pidfd_open(pid)
        self._title = "?"
        self.look()

    @property
    def title(self) -> str:
        """What it called itself when it was last looked at."""
        return self._title

    def look(self) -> None:
        """Read its title anew: processes give themselves one some time after their start."""
        title = processes.title(self.pid)
        if title != "?" and not self.has_ended():
            self._title = title

    def has_ended(self) -> bool:
        """Whether it is gone, or a zombie."""
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        return bool(poll.poll(0))

    def is_stopped(self) -> bool:
        """Whether a signal (SIGSTOP, SIGTSTP, ...) has stopped it."""
        self.look()
        return not self.has_ended() and processes.is_stopped(self.pid)

    def status(self) -> int | None:
        """Its exit status (128 + n when signal n ended it); None while it runs and where the kernel does not tell.

        Told since Linux 6.15, once its parent has taken note of its end.
        """
        info = bytearray(_INFO.pack(_INFO_EXIT, *[0] * 13))
        try:
            fcntl.ioctl(self._descriptor, _GET_INFO, info)
        except OSError:
            return None
        mask, *_, status = _INFO.unpack(info)
        if not mask & _INFO_EXIT:
            return None
        code = os.waitstatus_to_exitcode(status)
        return code if code >= 0 else 128 - code

    def kill(self) -> None:
        """Send SIGKILL, if it still runs."""
        if not self.has_ended():
            signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)

    def close(self) -> None:
        """Let go of the descriptor, which happens in the end anyway; safe to call twice."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    __del__ = close


def describe(status: int | None) -> str:
    """`was killed by SIGKILL`, `ended with exit status 3`: what follows a name in a line for the user."""
    if status is None:
        return "ended without a word (killed, for lack of memory or by somebody?)"
    try:
        return f"was killed by {signal.Signals(status - 128).name}"
    except ValueError:
        return f"ended with exit status {status}"


class Vital:
    """A process of a run that must neither end nor be stopped for long.

    Args:
        name: what users call it, e.g. `trainer rank 3`.
        pid: the process.
        limit_s: how long it may be stopped.
    """

    def __init__(self, name: str, pid: int, limit_s: float) -> None:
        self._name = name
        self._witness = Witness(pid)
        self._patience = Patience(limit_s, longest_step_s=LONGEST_STEP_S)

    def trouble(self) -> str | None:
        """The line for the user when it has ended or has been stopped for too long. To be asked regularly."""
        if self._witness.has_ended():
            return f"{self._name} {self.end()}"
        if self._patience.is_over(not self._witness.is_stopped()):
            return stopped_answering(self._name, self._patience.limit_s, [self._witness])
        return None

    def end(self) -> str:
        """How it ended; for a process that is about to, too."""
        deadline = time.monotonic() + REAP_DEADLINE_S
        while (status := self._witness.status()) is None and time.monotonic() < deadline:
            time.sleep(0.01)
        return describe(status)

    def kill_if_stopped(self) -> None:
        """Send SIGKILL when it is stopped, and so cannot end itself when it is asked to."""
        if self._witness.is_stopped():
            self._witness.kill()

    def close(self) -> None:
        """Let go of the process; safe to call twice."""
        self._witness.close()


def stopped_answering(name: str, limit_s: float, stopped: Sequence[Witness]) -> str:
    """The line for the user; `stopped` are the processes that are known to be the reason."""
    why = ", ".join(f"{witness.title} (process {witness.pid}) is stopped" for witness in stopped)
    return f"{name} stopped answering for {limit_s:g} s" + (f": {why}" if why else "")


class Patience:
    """How long something has not been well, as far as the asker was there to see it.

    Time in which the asker itself stood still does not count: a run that was stopped as a whole goes on.
    """

    def __init__(self, limit_s: float, *, longest_step_s: float) -> None:
        """Nothing is lost yet.

        Args:
            limit_s: how long it may last.
            longest_step_s: what counts at most between two calls.
        """
        self.limit_s = limit_s
        self._longest_step_s = longest_step_s
        self._last = time.monotonic()
        self._lost = 0.0

    def is_over(self, well: bool) -> bool:
        """Tell how it is now; whether it has not been well for longer than the limit."""
        now = time.monotonic()
        step, self._last = min(now - self._last, self._longest_step_s), now
        self._lost = 0.0 if well else self._lost + step
        return self._lost >= self.limit_s
