"""The scoring process: builds the rewards, then answers one task after another. Single-threaded, imports no torch.

    python -m vime_core.rewards.worker <socket> <owner's pid>

Tasks come as pickles (they hold arrays and the rewards' own settings), answers go as JSON.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import pickle
import resource
import signal
import socket
import sys
import traceback
from importlib import import_module
from typing import TYPE_CHECKING, Any

from vime_core.rewards.frames import FrameReader, pack
from vime_core.types import VERDICT_STATUSES, Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vime_core.plugins.interfaces import Reward
    from vime_core.types import Prompt, Sample

PR_SET_PDEATHSIG = 1
"""prctl(2)"""


def main() -> None:
    """Serve until the owner closes the connection or ends."""
    connection, owner = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    _end_with(owner)
    reader = FrameReader()
    setup = _receive(connection, reader)
    if setup is None:
        return
    sys.path[:], memory_limit, specs = pickle.loads(setup)
    _limit_memory(memory_limit)
    rewards = []
    for name, factory, config in specs:
        try:
            rewards.append(_build(factory, config))
        except BaseException as error:
            _send(connection, {"kind": "failed", "reward": name, "cause": _line(error)})
            return
    _send(connection, {"kind": "ready"})
    while (task := _receive(connection, reader)) is not None:
        _send(connection, {"kind": "done", "verdicts": _judge(connection, rewards, *pickle.loads(task))})


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
    connection: socket.socket, rewards: Sequence[Reward], sample: Sample, prompt: Prompt
) -> list[dict[str, Any]]:
    """The verdicts in the order of the rewards; ends after the first that failed."""
    verdicts: list[dict[str, Any]] = []
    for index, reward in enumerate(rewards):
        _send(connection, {"kind": "started", "reward": index})
        try:
            verdicts.append(_as_fields(reward.score(sample, prompt)))
        except BaseException as error:
            verdicts.append({"score": 0.0, "status": "error", "extracted": None, "detail": _line(error)})
            break
    return verdicts


def _as_fields(verdict: object) -> dict[str, Any]:
    if not isinstance(verdict, Verdict):
        raise TypeError(f"the reward returned {verdict!r:.80}, not a Verdict")
    if verdict.status not in VERDICT_STATUSES:
        raise ValueError(f"the reward gave the status {verdict.status!r:.80}, which must be one of {VERDICT_STATUSES}")
    score = float(verdict.score)
    if not math.isfinite(score):
        raise ValueError(f"the reward gave the score {score}")
    extracted = None if verdict.extracted is None else str(verdict.extracted)
    return {"score": score, "status": verdict.status, "extracted": extracted, "detail": str(verdict.detail)}


def _line(error: BaseException) -> str:
    """The exception and where it was raised, in one line."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:400]}{place}"


def _receive(connection: socket.socket, reader: FrameReader) -> bytes | None:
    """The next message; None when the owner has closed the connection."""
    while (body := reader.take()) is None:
        if not reader.feed(connection):
            return None
    return body


def _send(connection: socket.socket, message: dict[str, Any]) -> None:
    connection.sendall(pack(json.dumps(message).encode()))


if __name__ == "__main__":
    main()
