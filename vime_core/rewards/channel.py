"""The owner's end of the connection to a scoring process: never blocks on a process that does not read."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
from collections import deque
from typing import TYPE_CHECKING, Any

from vime_core.rewards.frames import FrameReader, pack

if TYPE_CHECKING:
    from collections.abc import Sequence


class Interrupted(Exception):
    """The pool is being closed."""


class Lost(Exception):
    """The process has closed its end, by ending."""


class Channel:
    """Sends frames, receives JSON messages.

    Args:
        connection: A connected stream socket; closed by `close`.
        interrupt: A descriptor that becomes readable when the pool is being closed.
    """

    def __init__(self, connection: socket.socket, interrupt: int) -> None:
        self._connection = connection
        self._interrupt = interrupt
        self._reader = FrameReader()
        self._unsent: deque[_Unsent] = deque()

    def send(self, body: bytes, aside: bytes = b"") -> None:
        """Queue a message; `exchange` sends it.

        Args:
            body: What the receiver reads at once.
            aside: What it reads only if it wants to: goes as a memory file, of which a descriptor is sent.
        """
        self._unsent.append(_Unsent(pack(body), aside))

    def exchange(self, timeout_s: float) -> Any:
        """Send what can be sent and return the next message, or None when the time passes first.

        Raises:
            Lost: at the end of the stream.
            Interrupted: when the pool is being closed.
        """
        message = self._reader.take()
        if message is None:
            poll = select.poll()
            poll.register(self._connection, select.POLLIN | (select.POLLOUT if self._unsent else 0))
            poll.register(self._interrupt, select.POLLIN)
            ready = dict(poll.poll(timeout_s * 1000))
            if self._interrupt in ready:
                raise Interrupted
            events = ready.get(self._connection.fileno(), 0)
            if events & select.POLLOUT:
                self._send_some()
            if events & ~select.POLLOUT:
                self._receive_some()
                message = self._reader.take()
        return None if message is None else json.loads(message.body)

    def rest(self) -> list[Any]:
        """The messages that a process left behind which has ended."""
        self._drop_unsent()
        messages = []
        self._connection.setblocking(False)
        with contextlib.suppress(BlockingIOError, ConnectionResetError):
            while self._reader.feed(self._connection):
                while (message := self._reader.take()) is not None:
                    messages.append(json.loads(message.body))
        return messages

    def close(self) -> None:
        """Close the connection."""
        self._drop_unsent()
        self._connection.close()

    def _drop_unsent(self) -> None:
        while self._unsent:
            self._unsent.popleft().close()

    def _send_some(self) -> None:
        try:
            self._unsent[0].send_some(self._connection)
        except BlockingIOError:
            return
        except (BrokenPipeError, ConnectionResetError) as error:
            raise Lost from error
        if self._unsent[0].is_sent():
            self._unsent.popleft()

    def _receive_some(self) -> None:
        try:
            more = self._reader.feed(self._connection)
        except ConnectionResetError as error:
            raise Lost from error
        if not more:
            raise Lost


class _Unsent:
    """What is left to send of one message."""

    def __init__(self, frame: bytes, aside: bytes) -> None:
        self._left = memoryview(frame)
        self._descriptors: Sequence[int] = (_memory_file(aside),) if aside else ()

    def send_some(self, connection: socket.socket) -> None:
        """Send what the connection takes without blocking; the descriptor goes with the first byte."""
        if self._descriptors:
            sent = socket.send_fds(connection, [self._left], self._descriptors, socket.MSG_DONTWAIT)
            self.close()
        else:
            sent = connection.send(self._left, socket.MSG_DONTWAIT)
        self._left = self._left[sent:]

    def is_sent(self) -> bool:
        """Whether nothing is left."""
        return not self._left

    def close(self) -> None:
        """Give up the own descriptor; one that was sent lives on."""
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors = ()


def _memory_file(content: bytes) -> int:
    descriptor = os.memfd_create("vime-reward-batch")
    with memoryview(content) as left:
        written = 0
        while written < len(left):
            written += os.write(descriptor, left[written:])
    return descriptor
