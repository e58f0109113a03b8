"""Which processes can meet where: the same shared memory, the same loopback. A Ray node id tells neither.

Two raylets may run on one machine, and two containers of one machine may share as little as two machines do.
"""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path

import psutil

SHARED_MEMORY = Path("/dev/shm")
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""random(4): made anew by every kernel at boot."""
NETWORK_NAMESPACE = Path("/proc/self/ns/net")


def memory_identity(folder: Path = SHARED_MEMORY) -> str:
    """Equal in two processes just when both see the same POSIX shared memory."""
    return f"{_boot()}:{os.stat(folder).st_dev:x}"


def loopback_identity() -> str:
    """Equal in two processes just when one reaches the other at a loopback address."""
    return f"{_boot()}:{os.stat(NETWORK_NAMESPACE).st_ino:x}"


def interface_of(address: str) -> str | None:
    """Name of the network interface that has this IP address, or None when none has it."""
    wanted = ipaddress.ip_address(address)
    for name, addresses in psutil.net_if_addrs().items():
        for found in addresses:
            if found.address.partition("%")[0] == str(wanted):
                return name
    return None


def _boot() -> str:
    return BOOT_ID.read_text(encoding="ascii").strip()
