"""A pipe that tells a helper process of its owner's end, however the owner ends."""

from __future__ import annotations

import os


class Lifeline:
    """The owner holds the write end for as long as it lives; the helper reads end of file when it does not.

    No other child keeps the pipe open: the write end is closed by exec, and after a plain fork in the child.
    """

    _open: set[Lifeline] = set()  # noqa: RUF012 - all of this process, for the fork handler

    def __init__(self) -> None:
        self.read_end, self._write_end = os.pipe()
        Lifeline._open.add(self)

    def handed_over(self) -> None:
        """Close the owner's copy of the read end, once the helper has its own."""
        os.close(self.read_end)

    def send(self, message: bytes) -> None:
        """Say something to the helper before closing.

        Raises:
            BrokenPipeError: when the helper has gone, or after `close`.
        """
        if self not in Lifeline._open:
            raise BrokenPipeError("the lifeline is closed")
        os.write(self._write_end, message)

    def close(self) -> None:
        """Let the helper read end of file; safe to call twice."""
        if self in Lifeline._open:
            Lifeline._open.remove(self)
            os.close(self._write_end)


def _close_all() -> None:
    for lifeline in list(Lifeline._open):
        lifeline.close()


os.register_at_fork(after_in_child=_close_all)
