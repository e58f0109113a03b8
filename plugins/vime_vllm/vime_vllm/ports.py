"""Where servers listen."""

from __future__ import annotations

import errno
import secrets
import socket
from pathlib import Path

from vime_core.errors import ResourceError

HOST = "127.0.0.1"
"""The router answers this machine only, and so do engines, unless a run spans hosts."""
UNREACHABLE = "127.255.255.255"
"""The loopback's broadcast address. One may listen there, and TCP neither connects to a broadcast address nor answers
what is sent to one (RFC 1122, 4.2.3.10)."""


_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST = 10_000
_ATTEMPTS = 200


def free_port(host: str = HOST) -> int:
    """A TCP port that nothing listens on at an address of this machine.

    A server binds it seconds after it was chosen, when its imports are done. So it is one from below the range from
    which the kernel takes ports for whoever asks for any and for every outgoing connection.

    Raises:
        ResourceError: when no port of that range is free.
    """
    end = int(_EPHEMERAL.read_text(encoding="ascii").split()[0])
    for _ in range(_ATTEMPTS if end > _LOWEST else 0):
        port = _LOWEST + secrets.randbelow(end - _LOWEST)
        if _is_free(host, port):
            return port
    raise ResourceError(
        f"no free port from {_LOWEST} to {end - 1} at {host}: end what listens there, or raise the start of "
        "net.ipv4.ip_local_port_range"
    )


def listen(host: str) -> socket.socket:
    """A socket that listens at an address of this machine, at a port as `free_port` chooses it.

    Raises:
        ResourceError: when no port of that range is free.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    while True:
        port = free_port(host)
        try:
            return socket.create_server((host, port), family=family)
        except OSError as error:
            # Somebody else has it since it was looked at.
            if error.errno != errno.EADDRINUSE:
                raise


def _is_free(host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            return False
        return True


def http_url(host: str, port: int) -> str:
    """Base URL of a server."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
