"""What a scoring process has begun and finished, in memory that its owner reads also after killing it."""

from __future__ import annotations

import mmap
import os
from json.encoder import encode_basestring_ascii as _quote
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vime_core.types import Verdict

AREA_BYTES = 1 << 20
_HEADER_BYTES = 16
_LINES_BYTES = AREA_BYTES - _HEADER_BYTES
_REWARDS = 1 << 16


class Progress:
    """A header of two 8-byte words, each stored at once - what runs now, how many bytes of lines follow - and lines.

    A line is what one reward said of one task, `[task, reward, score, "status", extracted, "detail"],` in JSON.

    Args:
        descriptor: of a memory file of `AREA_BYTES`; not closed here.
    """

    def __init__(self, descriptor: int) -> None:
        self._area = mmap.mmap(descriptor, AREA_BYTES)
        self._area.seek(_HEADER_BYTES)
        self._header = memoryview(self._area)[:_HEADER_BYTES].cast("Q")
        self._used = 0

    @staticmethod
    def new_file() -> int:
        """The descriptor of a new memory file, which vanishes when nobody holds it."""
        descriptor = os.memfd_create("vime-reward")
        os.ftruncate(descriptor, AREA_BYTES)
        return descriptor

    def close(self) -> None:
        """Give the memory back."""
        self._header.release()
        self._area.close()

    # the process's side

    def begin(self, task: int, reward: int) -> None:
        """A reward is being asked about a task; both count from 0."""
        self._header[0] = (task + 1) * _REWARDS + reward

    def rest(self) -> None:
        """No reward is being asked."""
        self._header[0] = 0

    def add(self, line: bytes) -> bool:
        """Keep a line; False when there is no room for it."""
        used = self._used + len(line)
        if used > _LINES_BYTES:
            return False
        self._area.write(line)
        self._header[1] = self._used = used
        return True

    def clear(self) -> None:
        """Forget the lines."""
        self._header[1] = self._used = 0
        self._area.seek(_HEADER_BYTES)

    # both sides

    def lines(self) -> bytes:
        """All lines that were added since they were cleared."""
        return self._area[_HEADER_BYTES : _HEADER_BYTES + self._header[1]]

    # the owner's side

    def running(self) -> int:
        """A number that differs for every task and reward; 0 for none."""
        return self._header[0]


def split_running(running: int) -> tuple[int, int]:
    """Task and reward of `Progress.running`; the task is -1 for none."""
    return running // _REWARDS - 1, running % _REWARDS


def result_line(task: int, reward: int, verdict: Verdict) -> bytes:
    """A line; `verdict.score` must be finite."""
    extracted = "null" if verdict.extracted is None else _quote(verdict.extracted)
    return f'[{task},{reward},{verdict.score!r},"{verdict.status}",{extracted},{_quote(verdict.detail)}],'.encode()
