"""Sync strategy `shm`: weights through POSIX shared memory, for trainer and engines on one node."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from vime_core.cluster.hosts import memory_identity
from vime_core.errors import ResourceError, SyncError
from vime_vllm.sync.bucket import buckets
from vime_vllm.sync.control import WeightSessions
from vime_vllm.sync.push import NO_WEIGHTS, NOT_CONNECTED, Tally, drain, push_deadline
from vime_vllm.sync.segment import Segment
from vime_vllm.sync.wire import update_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from concurrent.futures import Future
    from typing import Any

    import torch

    from vime_core.types import EngineEndpoint, PushReport
    from vime_vllm.config import ShmConfig

RUN_ID_VARIABLE = "VIME_RUN_ID"
SEGMENTS = 2
"""The trainer fills one while the engines read the other."""


class ShmSync:
    """Implements `SyncStrategy`. Rank 0 sends; the other ranks only take their part in gathering the weights."""

    def __init__(self, config: ShmConfig, rank: int, world_size: int) -> None:
        """The run's id and deadline come from the environment, `VIME_RUN_ID` and `VIME_PUSH_DEADLINE_S`."""
        self._rank = rank
        self._run_id = os.environ[RUN_ID_VARIABLE]
        self._deadline_s = push_deadline()
        self._capacity = (config.bucket_mib << 20) // SEGMENTS
        self._segments = [Segment(f"vime-{self._run_id}-weights-{index}") for index in range(SEGMENTS)]
        self._sessions: WeightSessions | None = None

    def connect(self, endpoints: Sequence[EngineEndpoint]) -> None:
        """Prepare every engine for pushes.

        Raises:
            ResourceError: when an engine is out of reach of this process's shared memory.
            SyncError: names the engine that could not be.
        """
        if self._rank == 0:
            _check_reach(endpoints)
            self._sessions = WeightSessions(endpoints, self._deadline_s)
            self._sessions.init({"run_id": self._run_id})

    def push(self, weights: Iterable[tuple[str, torch.Tensor]], version: int) -> PushReport | None:
        """Move all weights into all engines, see `SyncStrategy.push`.

        Raises:
            SyncError: names the engine that failed and why; no engine can be used afterwards.
            ResourceError: when shared memory is short.
        """
        remaining = iter(weights)
        if self._rank == 0:
            try:
                return self._send(remaining, version)
            except Exception:
                self._unlink()
                drain(remaining)
                raise
        drain(remaining)
        return None

    def close(self) -> None:
        """Close connections and unlink the segments; safe to call twice."""
        sessions, self._sessions = self._sessions, None
        if sessions is not None:
            sessions.close()
        self._unlink()

    def _send(self, weights: Iterator[tuple[str, torch.Tensor]], version: int) -> PushReport:
        if self._sessions is None:
            raise SyncError(NOT_CONNECTED)
        tally = Tally()
        self._sessions.start()
        loading: Future[Any] | None = None
        for bucket in buckets(weights, self._segments, self._capacity):
            if loading is not None:
                loading.result()
            loading = self._sessions.update(update_json(bucket.segment.name, bucket.records))
            tally.add(bucket.records)
        if loading is None:
            raise SyncError(NO_WEIGHTS)
        loading.result()
        self._sessions.finish(version)
        return tally.report(version)

    def _unlink(self) -> None:
        for segment in self._segments:
            segment.close()


def _check_reach(endpoints: Sequence[EngineEndpoint]) -> None:
    away = [endpoint for endpoint in endpoints if endpoint.host != memory_identity()]
    if away:
        raise ResourceError(
            f"sync=shm moves weights through the memory of one host, and {away[0].name} at {away[0].url} is on another "
            "than trainer rank 0 (or in a container with a /dev/shm of its own): place both on one host, or choose a "
            "sync strategy that crosses hosts"
        )
