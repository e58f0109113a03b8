"""Messages over a socket between a pool and its own scoring processes: 4 bytes big-endian length, then the body.

A descriptor may come with the length; it is the receiver's then.
"""

from __future__ import annotations

import socket
import struct
from typing import NamedTuple

NO_DESCRIPTOR = -1

_LENGTH = struct.Struct(">I")


def pack(body: bytes) -> bytes:
    """The frame of one message."""
    return _LENGTH.pack(len(body)) + body


class Frame(NamedTuple):
    """One message."""

    body: bytearray
    descriptor: int
    """`NO_DESCRIPTOR` when none came."""


class FrameReader:
    """Takes bytes as they come and gives whole messages, each read into memory of its own, without a copy."""

    def __init__(self) -> None:
        self._length = bytearray()
        self._body: bytearray | None = None
        self._descriptor = NO_DESCRIPTOR
        self._filled = 0

    def feed(self, connection: socket.socket) -> bool:
        """Read what is there, or wait for something; False at the end of the stream. `take` what is whole first."""
        if self._body is None:
            missing = _LENGTH.size - len(self._length)
            chunk, descriptors, _, _ = socket.recv_fds(connection, missing, 1, socket.MSG_CMSG_CLOEXEC)
            self._length += chunk
            self._descriptor = next(iter(descriptors), self._descriptor)
            if len(self._length) == _LENGTH.size:
                self._body = bytearray(_LENGTH.unpack(self._length)[0])
                self._length.clear()
            return bool(chunk)
        with memoryview(self._body) as view:
            count = connection.recv_into(view[self._filled :])
        self._filled += count
        return count > 0

    def take(self) -> Frame | None:
        """The next whole message, or None when more must be read first."""
        body = self._body
        if body is None or self._filled < len(body):
            return None
        frame = Frame(body, self._descriptor)
        self._body, self._descriptor, self._filled = None, NO_DESCRIPTOR, 0
        return frame
