"""Where servers listen."""

from __future__ import annotations

import socket

HOST = "127.0.0.1"
"""Engines and router answer this machine only."""
UNREACHABLE = "127.255.255.255"
"""The loopback's broadcast address. One may listen there, and TCP neither connects to a broadcast address nor answers
what is sent to one (RFC 1122, 4.2.3.10)."""


def free_port() -> int:
    """A TCP port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port
