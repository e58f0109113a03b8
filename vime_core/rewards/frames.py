"""Messages over a socket between a pool and its own scoring processes: 4 bytes big-endian length, then the body."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket

_LENGTH = struct.Struct(">I")


def pack(body: bytes) -> bytes:
    """The frame of one message."""
    return _LENGTH.pack(len(body)) + body


class FrameReader:
    """Takes bytes as they come and gives whole messages, each read into memory of its own, without a copy."""

    def __init__(self) -> None:
        self._length = bytearray()
        self._body: bytearray | None = None
        self._filled = 0

    def feed(self, connection: socket.socket) -> bool:
        """Read what is there, or wait for something; False at the end of the stream. `take` what is whole first."""
        if self._body is None:
            chunk = connection.recv(_LENGTH.size - len(self._length))
            self._length += chunk
            if len(self._length) == _LENGTH.size:
                self._body = bytearray(_LENGTH.unpack(self._length)[0])
                self._length.clear()
            return bool(chunk)
        with memoryview(self._body) as view:
            count = connection.recv_into(view[self._filled :])
        self._filled += count
        return count > 0

    def take(self) -> bytearray | None:
        """The next whole message, or None when more must be read first."""
        body = self._body
        if body is None or self._filled < len(body):
            return None
        self._body, self._filled = None, 0
        return body
