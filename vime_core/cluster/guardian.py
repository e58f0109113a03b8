"""The processes around a guarded command: when its owner or the command ends, so does all that the command started.

There are two, one inside the other, so that either can be killed: orphans fall to the outer one when the inner one
dies, and the inner one sees the end of a pipe when the outer one dies.

Run by path as `python -I -S guardian.py LIFELINE COMMAND...`, as the leader of a process group, in which the command
runs too. Standard library only and nothing of this package, so that it starts at once whatever the environment holds.
LIFELINE is the file descriptor of a socket whose other end the owner holds.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import time

PR_SET_CHILD_SUBREAPER = 36
"""prctl(2): orphaned descendants become children of this process, whatever session or group they are in."""
END_DEADLINE_S = 60.0
"""A killed process may take this long to go (a driver may hold it in the kernel) before it is given up."""
OWNER_DIED = 128 + signal.SIGKILL
CANNOT_RUN = 127

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Meant for the command, which shares the process group; the guardian outlives it to clean up."""
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


def main(lifeline: int, command: list[str]) -> int:
    """Run the command to its end and return its exit status (128 + n when signal n ended it)."""
    os.set_inheritable(lifeline, False)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for signum in _STOP_SIGNALS:
        signal.signal(signum, signal.SIG_IGN)
    children_changed = _become_guardian()
    outer_lives, held_by_outer = os.pipe()
    group = os.getpgid(0)
    child: int | None = os.fork()
    lifelines = [lifeline]
    if child == 0:
        os.close(held_by_outer)
        lifelines.append(outer_lives)
        # Out of the group, which the owner kills when the outer guardian was killed.
        os.setpgid(0, 0)
        children_changed = _become_guardian()
        child = _start(command, group)
    if child is None:
        return CANNOT_RUN
    status = _wait(child, lifelines, children_changed)
    _end_children()
    return status


def _become_guardian() -> int:
    """Adopt orphaned descendants; a file descriptor that becomes readable when a child ends."""
    _become_subreaper()
    return _notice_children()


def _start(command: list[str], group: int) -> int | None:
    """The pid of the command, or None with a line in its log."""
    signals = (*_STOP_SIGNALS, *_IGNORED_BY_PYTHON)
    try:
        return os.posix_spawnp(command[0], command, os.environ, setsigdef=signals, setpgroup=group)
    except OSError as error:
        sys.stderr.write(f"cannot run {command[0]}: {error.strerror}\n")
        return None


def _notice_children() -> int:
    """A file descriptor that becomes readable when a child ends."""
    readable, writable = os.pipe()
    os.set_blocking(readable, False)
    os.set_blocking(writable, False)
    signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return readable


def _become_subreaper() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def _wait(child: int, lifelines: list[int], children_changed: int) -> int:
    """Reap children until `child` ends or one of the lifelines does."""
    poll = select.poll()
    for lifeline in lifelines:
        poll.register(lifeline, select.POLLIN)
    poll.register(children_changed, select.POLLIN)
    while True:
        ready = {descriptor for descriptor, _ in poll.poll()}
        if children_changed in ready:
            os.read(children_changed, 4096)
        while (ended := _reap()) is not None:
            pid, status = ended
            if pid == child:
                return status
        if ready & set(lifelines):
            return OWNER_DIED


def _reap() -> tuple[int, int] | None:
    """(pid, status) of a child that has ended, or None."""
    try:
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    code = os.waitstatus_to_exitcode(status) if pid else 0
    return (pid, code if code >= 0 else 128 - code) if pid else None


def _end_children() -> None:
    """Kill children until none is left; the orphans of each become children here."""
    deadline = time.monotonic() + END_DEADLINE_S
    while children := _children():
        if time.monotonic() > deadline:
            sys.stderr.write(f"processes {children} cannot be ended\n")
            return
        for pid in children:
            os.kill(pid, signal.SIGKILL)
        while _reap() is not None:
            pass
        time.sleep(0.005)


def _children() -> list[int]:
    """Own children, not yet reaped, so none of these pids can belong to another process."""
    return [int(entry) for entry in os.listdir("/proc") if entry.isdecimal() and _parent(entry) == os.getpid()]


def _parent(pid: str) -> int | None:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except OSError:
        return None


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
