"""Processes of this node by identity (pid and start time), and how to end whole trees of them. Linux only."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

FREEZE_DEADLINE_S = 2.0
"""Longest wait until the processes of a tree have stopped, before they are killed anyway."""

_SETTLED = frozenset("TtDZX")
"""States in which a process cannot fork: stopped, traced, in an uninterruptible wait, dead."""
_DEAD = frozenset("ZX")


class ProcessId(NamedTuple):
    """One process for ever: a pid alone is used again after its process has ended."""

    pid: int
    start: int
    """Clock ticks after boot."""


class _Row(NamedTuple):
    parent: int
    start: int
    state: str


def identify(pid: int) -> ProcessId | None:
    """The process that has this pid now, or None when there is none (or only its zombie)."""
    row = _row(pid)
    return ProcessId(pid, row.start) if row and row.state not in _DEAD else None


def is_alive(process: ProcessId) -> bool:
    """Whether this very process still runs; zombies do not."""
    return identify(process.pid) == process


def name(process: ProcessId) -> str:
    """Short name as the kernel knows it, `?` when the process has gone."""
    try:
        with open(f"/proc/{process.pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return "?"


def title(pid: int) -> str:
    """What a process calls itself: `VLLM::EngineCore`, `ray::TrainWorker`, `python`; `?` when it has gone."""
    try:
        with open(f"/proc/{pid}/cmdline", encoding="utf-8", errors="replace") as file:
            return os.path.basename(file.read().split("\0")[0].strip()) or "?"
    except OSError:
        return "?"


def is_stopped(pid: int) -> bool:
    """Whether a signal has stopped the process; one that is traced is not."""
    row = _row(pid)
    return row is not None and row.state == "T"


def descendants(pid: int) -> set[ProcessId]:
    """All living children of a process, their children and so on."""
    root = identify(pid)
    return _trees({root}, _table()) - {root} if root else set()


def children(pid: int) -> set[ProcessId]:
    """The living children of a process."""
    table = _table()
    return {ProcessId(child, row.start) for child, row in table.items() if row.parent == pid and row.state not in _DEAD}


def end_trees(roots: Collection[ProcessId]) -> set[ProcessId]:
    """Send SIGKILL to those of `roots` that are alive and to all their descendants, and return them.

    The trees are stopped first, so that none can fork a child between being looked at and being killed; the caller
    itself is spared. Returns at once: whoever needs to know asks `is_alive`.
    """
    deadline = time.monotonic() + FREEZE_DEADLINE_S
    frozen: set[ProcessId] = set()
    while True:
        table = _table()
        fresh = {process for process in _trees({*roots, *frozen}, table) if process.pid != os.getpid()} - frozen
        for process in fresh:
            send(process, signal.SIGSTOP)
        frozen |= fresh
        settled = all(table[process.pid].state in _SETTLED for process in frozen if process.pid in table)
        if (settled and not fresh) or time.monotonic() > deadline:
            break
        time.sleep(0.001)
    for process in frozen:
        send(process, signal.SIGKILL)
    return frozen


def send(process: ProcessId, signum: signal.Signals) -> None:
    """Signal this very process; nothing happens when it has gone or belongs to someone else."""
    if is_alive(process):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process.pid, signum)


def _trees(roots: Collection[ProcessId], table: dict[int, _Row]) -> set[ProcessId]:
    """The living among `roots` and all that descends from them."""
    children: dict[int, list[int]] = {}
    for pid, row in table.items():
        children.setdefault(row.parent, []).append(pid)
    waiting = [root.pid for root in roots if root.pid in table and table[root.pid].start == root.start]
    found: set[ProcessId] = set()
    while waiting:
        pid = waiting.pop()
        process = ProcessId(pid, table[pid].start)
        if process not in found and table[pid].state not in _DEAD:
            found.add(process)
            waiting.extend(children.get(pid, ()))
    return found


def _table() -> dict[int, _Row]:
    return dict(_rows())


def _rows() -> Iterator[tuple[int, _Row]]:
    for entry in os.listdir("/proc"):
        if entry.isdecimal() and (row := _row(int(entry))):
            yield int(entry), row


def _row(pid: int) -> _Row | None:
    """Fields 3, 4 and 22 of /proc/<pid>/stat, see proc_pid_stat(5); the name before them may hold any character."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return _Row(parent=int(fields[1]), start=int(fields[19]), state=fields[0])
