"""Where servers listen."""

from __future__ import annotations

import socket

HOST = "127.0.0.1"
"""The router answers this machine only, and so do engines, unless a run spans hosts."""
UNREACHABLE = "127.255.255.255"
"""The loopback's broadcast address. One may listen there, and TCP neither connects to a broadcast address nor answers
what is sent to one (RFC 1122, 4.2.3.10)."""


def free_port(host: str = HOST) -> int:
    """A TCP port that nothing listens on at an address of this machine."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def http_url(host: str, port: int) -> str:
    """Base URL of a server."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
