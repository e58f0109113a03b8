"""A connection that tells a helper process of its owner's end, and the owner of the helper's, however they end."""

from __future__ import annotations

import os
import select
import socket


class Lifeline:
    """The owner holds one end for as long as it lives; the helper reads end of file when it does not.

    No other child keeps the owner's end open: it is closed by exec, and after a plain fork in the child.
    """

    _open: set[Lifeline] = set()  # noqa: RUF012 - all of this process, for the fork handler

    def __init__(self) -> None:
        self._own_end, helpers_end = socket.socketpair()
        self.read_end = helpers_end.detach()
        Lifeline._open.add(self)

    def handed_over(self) -> None:
        """Close the owner's copy of the helper's end, once the helper has its own."""
        os.close(self.read_end)

    def send(self, message: bytes) -> None:
        """Say something to the helper before it is cut.

        Raises:
            BrokenPipeError: when the helper has gone, or after `cut` or `close`.
        """
        if self not in Lifeline._open:
            raise BrokenPipeError("the lifeline is closed")
        self._own_end.send(message)

    def cut(self) -> None:
        """Let the helper read end of file; its own end can still be waited for. Safe to call twice."""
        if self in Lifeline._open:
            self._own_end.shutdown(socket.SHUT_WR)

    def wait_for_end(self, deadline_s: float) -> bool:
        """Whether all who held the helper's end let go of it within the deadline."""
        poll = select.poll()
        poll.register(self._own_end, select.POLLIN)
        return bool(poll.poll(deadline_s * 1000))

    def close(self) -> None:
        """Let the helper read end of file; safe to call twice."""
        if self in Lifeline._open:
            Lifeline._open.remove(self)
            self._own_end.close()


def _close_all() -> None:
    for lifeline in list(Lifeline._open):
        lifeline.close()


os.register_at_fork(after_in_child=_close_all)
