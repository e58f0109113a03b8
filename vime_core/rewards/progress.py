"""What a scoring process has begun and finished, in memory that its owner reads also after killing it."""

from __future__ import annotations

import mmap
import os
from json.encoder import encode_basestring_ascii
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vime_core.types import Verdict

AREA_BYTES = 1 << 20
_HEADER_BYTES = 16
_REWARDS = 1 << 16
_NULL = "null"


class Progress:
    """A header of two 8-byte words, each stored at once - what runs now, how many bytes of lines follow - and lines.

    A line is what one reward said of one task, `[task, reward, score, "status", extracted, "detail"],` in JSON.

    Args:
        descriptor: of a memory file of `AREA_BYTES`; not closed here.
    """

    def __init__(self, descriptor: int) -> None:
        self._area = mmap.mmap(descriptor, AREA_BYTES)
        self._view = memoryview(self._area)
        self._header = self._view[:_HEADER_BYTES].cast("Q")

    @staticmethod
    def new_file() -> int:
        """The descriptor of a new memory file, which vanishes when nobody holds it."""
        descriptor = os.memfd_create("vime-reward")
        os.ftruncate(descriptor, AREA_BYTES)
        return descriptor

    def close(self) -> None:
        """Give the memory back."""
        self._header.release()
        self._view.release()
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
        used = self._header[1]
        end = _HEADER_BYTES + used + len(line)
        if end > AREA_BYTES:
            return False
        self._view[_HEADER_BYTES + used : end] = line
        self._header[1] = used + len(line)
        return True

    def clear(self) -> None:
        """Forget the lines."""
        self._header[1] = 0

    # both sides

    def lines(self) -> bytes:
        """All lines that were added since they were cleared."""
        return bytes(self._view[_HEADER_BYTES : _HEADER_BYTES + self._header[1]])

    # the owner's side

    def running(self) -> int:
        """A number that differs for every task and reward; 0 for none."""
        return self._header[0]


def split_running(running: int) -> tuple[int, int]:
    """Task and reward of `Progress.running`; the task is -1 for none."""
    return running // _REWARDS - 1, running % _REWARDS


def result_line(task: int, reward: int, verdict: Verdict) -> bytes:
    """A line; `verdict.score` must be finite."""
    extracted = _NULL if verdict.extracted is None else encode_basestring_ascii(verdict.extracted)
    detail = encode_basestring_ascii(verdict.detail)
    return f'[{task},{reward},{verdict.score!r},"{verdict.status}",{extracted},{detail}],'.encode()
