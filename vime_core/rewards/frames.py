"""Messages over a socket between a pool and its own scoring processes: 4 bytes big-endian length, then the body."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket

_LENGTH = struct.Struct(">I")
_CHUNK_BYTES = 1 << 20


def pack(body: bytes) -> bytes:
    """The frame of one message."""
    return _LENGTH.pack(len(body)) + body


class FrameReader:
    """Takes bytes as they come and gives whole messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, connection: socket.socket) -> bool:
        """Read what is there, or wait for something; False at the end of the stream."""
        chunk = connection.recv(_CHUNK_BYTES)
        self._buffer += chunk
        return bool(chunk)

    def take(self) -> bytes | None:
        """The next whole message, or None when more must be read first."""
        if len(self._buffer) < _LENGTH.size:
            return None
        end = _LENGTH.size + _LENGTH.unpack_from(self._buffer)[0]
        if len(self._buffer) < end:
            return None
        body = bytes(self._buffer[_LENGTH.size : end])
        del self._buffer[:end]
        return body
