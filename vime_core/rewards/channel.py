"""The owner's end of the connection to a scoring process: never blocks on a process that does not read."""

from __future__ import annotations

import contextlib
import json
import select
import socket
from collections import deque
from typing import Any

from vime_core.rewards.frames import FrameReader, pack


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
        self._unsent: deque[memoryview] = deque()

    def send(self, body: bytes) -> None:
        """Queue a message; `exchange` sends it."""
        self._unsent.append(memoryview(pack(body)))

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
        return None if message is None else json.loads(message)

    def rest(self) -> list[Any]:
        """The messages that a process left behind which has ended."""
        self._unsent.clear()
        messages = []
        self._connection.setblocking(False)
        with contextlib.suppress(BlockingIOError, ConnectionResetError):
            while self._reader.feed(self._connection):
                while (message := self._reader.take()) is not None:
                    messages.append(json.loads(message))
        return messages

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _send_some(self) -> None:
        try:
            sent = self._connection.send(self._unsent[0], socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except (BrokenPipeError, ConnectionResetError) as error:
            raise Lost from error
        self._unsent[0] = self._unsent[0][sent:]
        if not self._unsent[0]:
            self._unsent.popleft()

    def _receive_some(self) -> None:
        try:
            more = self._reader.feed(self._connection)
        except ConnectionResetError as error:
            raise Lost from error
        if not more:
            raise Lost
