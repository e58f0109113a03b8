"""The scoring process: builds the rewards, then answers one task after another. Single-threaded, imports no torch.

    python -m vime_core.rewards.worker <socket> <memory file> <owner's pid>

Tasks come as pickles (they hold arrays and the rewards' own settings), answers go as JSON: into the shared memory one
by one, where the owner finds them should this process end, and over the socket when a batch is done.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import pickle
import resource
import signal
import socket
import sys
import traceback
from importlib import import_module
from math import isfinite
from typing import TYPE_CHECKING, Any

from vime_core.rewards.frames import Frame, FrameReader, pack
from vime_core.rewards.progress import Progress, result_line
from vime_core.rewards.wire import decode
from vime_core.types import SILENT_STATUSES, VERDICT_STATUSES, Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vime_core.plugins.interfaces import Reward
    from vime_core.types import Prompt, Sample

PR_SET_PDEATHSIG = 1
"""prctl(2)"""

_TEXTS = (str, type(None))


def main() -> None:
    """Serve until the owner closes the connection or ends."""
    descriptor, memory, owner = map(int, sys.argv[1:])
    _end_with(owner)
    connection, progress = socket.socket(fileno=descriptor), Progress(memory)
    reader = FrameReader()
    setup = _receive(connection, reader)
    if setup is None:
        return
    sys.path[:], memory_limit, specs = pickle.loads(setup.body)
    _limit_memory(memory_limit)
    rewards = []
    for name, factory, config in specs:
        try:
            rewards.append(_build(factory, config))
        except BaseException as error:
            _send(connection, {"kind": "failed", "reward": name, "cause": _line(error)})
            return
    gc.freeze()  # what the rewards imported stays: there is no use in looking at it again and again
    _send(connection, {"kind": "ready"})
    results = _Results(connection, progress)
    numbered = tuple(enumerate(rewards))
    number = 0
    while (batch := _receive(connection, reader)) is not None:
        for sample, prompt in decode(*batch):
            _judge(results, number, numbered, sample, prompt)
            number += 1
        progress.rest()
        results.send()


class _Results:
    """What the rewards said and the owner has not been sent."""

    def __init__(self, connection: socket.socket, progress: Progress) -> None:
        self._connection = connection
        self._progress = progress
        self.begin = progress.begin

    def add(self, line: bytes) -> None:
        """Keep a line, and send what there is when the memory is full."""
        if self._progress.add(line):
            return
        self.send()
        if not self._progress.add(line):
            self._send(line)

    def send(self) -> None:
        """Send and forget; a line that the owner has twice, because this process ends in between, is no harm."""
        self._send(self._progress.lines())
        self._progress.clear()

    def _send(self, lines: bytes) -> None:
        self._connection.sendall(pack(b"[" + lines.rstrip(b",") + b"]"))


def _end_with(owner: int) -> None:
    """Have the kernel end this process with its owner: while a reward runs, nobody here reads the connection."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != owner:
        sys.exit(1)


def _limit_memory(limit_bytes: int | None) -> None:
    """Let an allocation past the limit raise MemoryError here, before the machine runs out of memory."""
    if limit_bytes is not None:
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        soft = limit_bytes if hard == resource.RLIM_INFINITY else min(limit_bytes, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _build(factory: str, config: bytes) -> Reward:
    module, _, attribute = factory.partition(":")
    reward: Reward = getattr(import_module(module), attribute)(pickle.loads(config))
    return reward


def _judge(
    results: _Results, number: int, rewards: Sequence[tuple[int, Reward]], sample: Sample, prompt: Prompt
) -> None:
    """Ask the rewards in order, until one fails."""
    for index, reward in rewards:
        results.begin(number, index)
        try:
            verdict = _checked(reward.score(sample, prompt))
        except BaseException as error:
            verdict = Verdict(0.0, "error", None, _line(error))
        results.add(result_line(number, index, verdict))
        if verdict.status in SILENT_STATUSES:
            return


def _checked(verdict: object) -> Verdict:
    """The verdict with fields of exactly their types."""
    if not isinstance(verdict, Verdict):
        raise TypeError(f"the reward returned {verdict!r:.80}, not a Verdict")
    given, extracted, detail = verdict.score, verdict.extracted, verdict.detail
    if verdict.status not in VERDICT_STATUSES:
        raise ValueError(f"the reward gave the status {verdict.status!r:.80}, which must be one of {VERDICT_STATUSES}")
    if type(given) is float and isfinite(given) and type(extracted) in _TEXTS and type(detail) is str:
        return verdict
    if isinstance(given, (str, bytes)):
        raise TypeError(f"the reward gave the score {given!r:.80}, which is not a number")
    score = float(given)
    if not isfinite(score):
        raise ValueError(f"the reward gave the score {score}")
    return Verdict(score, verdict.status, None if extracted is None else str(extracted), str(detail))


def _line(error: BaseException) -> str:
    """The exception and where it was raised, in one line."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:400]}{place}"


def _receive(connection: socket.socket, reader: FrameReader) -> Frame | None:
    """The next message; None when the owner has closed the connection."""
    while (frame := reader.take()) is None:
        if not reader.feed(connection):
            return None
    return frame


def _send(connection: socket.socket, message: dict[str, Any]) -> None:
    connection.sendall(pack(json.dumps(message).encode()))


if __name__ == "__main__":
    main()
