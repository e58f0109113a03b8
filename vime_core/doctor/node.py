"""Checks of the operating system: open files, shared memory, memory, ports."""

from __future__ import annotations

import shutil
import socket
from contextlib import ExitStack
from typing import TYPE_CHECKING

import psutil

from vime_core.accelerators.findings import Finding
from vime_core.accelerators.threads import usable_cores
from vime_core.cluster.limits import OPEN_FILES, UNLIMITED

if TYPE_CHECKING:
    from pathlib import Path

FEW_OPEN_FILES = 4096
"""Below this a run of one node may fail."""
SHARED_MEMORY_NEEDED = 1 << 30
"""Ray's object store and a bucket of a weight push, with the defaults."""
SHARED_MEMORY_WANTED = 8 << 30
MEMORY_NEEDED = 4 << 30
PORTS = 32
LOOPBACK = "127.0.0.1"


def check_open_files(before: int, now: int) -> Finding:
    """Judge what `raise_open_files` reached."""
    if now == UNLIMITED or now >= OPEN_FILES:
        return Finding("open files", "ok", _raised(before, now))
    remedy = (
        f"for runs of many devices raise the hard limit to {OPEN_FILES}: --ulimit nofile={OPEN_FILES}:{OPEN_FILES} for "
        "a container, else nofile in /etc/security/limits.conf"
    )
    detail = f"{_raised(before, now)}, the hard limit"
    return Finding("open files", "problem" if now < FEW_OPEN_FILES else "warning", detail, remedy)


def check_shared_memory(folder: Path) -> Finding:
    """Ray's object store and weight pushes through the host live there."""
    if not folder.is_dir():
        return Finding("shared memory", "problem", f"{folder} does not exist", "mount a tmpfs there")
    usage = shutil.disk_usage(folder)
    detail = f"{folder} has {usage.free / 2**30:.1f} of {usage.total / 2**30:.1f} GiB free"
    remedy = "give containers --ipc host or a larger --shm-size; else remount it: mount -o remount,size=<size>"
    if usage.free < SHARED_MEMORY_NEEDED:
        return Finding("shared memory", "problem", detail, f"a run needs 1 GiB: {remedy}")
    if usage.free < SHARED_MEMORY_WANTED:
        return Finding("shared memory", "warning", detail, f"models of billions of parameters want 8 GiB: {remedy}")
    return Finding("shared memory", "ok", detail)


def check_host() -> Finding:
    """Cores and memory."""
    memory = psutil.virtual_memory()
    detail = f"{usable_cores()} cores, {memory.available / 2**30:.1f} of {memory.total / 2**30:.1f} GiB memory free"
    if memory.available < MEMORY_NEEDED:
        return Finding("host", "warning", detail, "even a tiny run takes 4 GiB: end other programs")
    return Finding("host", "ok", detail)


def check_ports(count: int = PORTS) -> Finding:
    """Engines, router, Ray and the trainer's meeting point take ports that the system chooses."""
    with ExitStack() as stack:
        taken = 0
        try:
            for _ in range(count):
                stack.enter_context(socket.socket()).bind((LOOPBACK, 0))
                taken += 1
        except OSError as error:
            return Finding(
                "ports",
                "problem",
                f"only {taken} of {count} free ports on {LOOPBACK}: {error.strerror}",
                "widen net.ipv4.ip_local_port_range, or end what holds the ports (ss -tan)",
            )
    return Finding("ports", "ok", f"{count} free ports on {LOOPBACK}")


def _raised(before: int, now: int) -> str:
    if before == now:
        return f"the limit is {_limit(now)}"
    return f"a run raises the limit from {_limit(before)} to {_limit(now)}"


def _limit(value: int) -> str:
    return "unlimited" if value == UNLIMITED else str(value)
