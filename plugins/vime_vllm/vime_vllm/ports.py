"""Where servers listen."""

from __future__ import annotations

import socket

HOST = "127.0.0.1"
"""Engines and router answer this machine only."""


def free_port() -> int:
    """A TCP port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port
