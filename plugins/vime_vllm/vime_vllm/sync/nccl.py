"""Sync strategy `nccl`: weights through a process group, for engines that have devices of their own."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from vime_core.errors import SyncError
from vime_vllm.sync.bucket import buckets
from vime_vllm.sync.clock import OWN_SHARE, Clock
from vime_vllm.sync.control import WeightSessions
from vime_vllm.sync.group_buffer import GroupBuffer
from vime_vllm.sync.push import NO_WEIGHTS, NOT_CONNECTED, Tally, drain, push_deadline
from vime_vllm.sync.weight_group import meet
from vime_vllm.sync.wire import bucket_mark, group_update_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import torch

    from vime_core.types import EngineEndpoint, PushReport
    from vime_vllm.config import NcclConfig
    from vime_vllm.sync.weight_group import WeightGroup

BUFFERS = 2
"""The trainer fills one while the other travels."""


class NcclSync:
    """Implements `SyncStrategy`. Rank 0 broadcasts; the other ranks only take their part in gathering the weights.

    The collectives are those of the trainer's ranks: NCCL, on ROCm RCCL, and gloo on the CPU. What a bucket holds goes
    to the engines over HTTP, and their answers, not the broadcast, say that it has arrived.
    """

    def __init__(self, config: NcclConfig, rank: int, world_size: int) -> None:
        """The deadline comes from the environment, `VIME_PUSH_DEADLINE_S`; a push ends a tenth of it sooner."""
        self._rank = rank
        self._limit_s = OWN_SHARE * push_deadline()
        self._capacity = (config.bucket_mib << 20) // BUFFERS
        self._buffers: list[GroupBuffer] = []
        self._sessions: WeightSessions | None = None
        self._group: WeightGroup | None = None

    def connect(self, endpoints: Sequence[EngineEndpoint]) -> None:
        """Make the process group with every worker of every engine.

        Raises:
            SyncError: names the engine that did not join, within the deadline.
            ResourceError: when no port is free to meet at.
        """
        if self._rank:
            return
        from torch import distributed

        clock = Clock(self._limit_s)
        self._sessions = WeightSessions(endpoints, self._limit_s)
        self._group = meet(self._sessions, endpoints, distributed.get_backend(), clock)
        self._buffers = [GroupBuffer(self._group.device) for _ in range(BUFFERS)]

    def push(self, weights: Iterable[tuple[str, torch.Tensor]], version: int) -> PushReport | None:
        """Move all weights into all engines, see `SyncStrategy.push`.

        Raises:
            SyncError: names the engine that failed, was silent or has gone, and why; no engine can be used afterwards.
        """
        remaining = iter(weights)
        if self._rank == 0:
            try:
                return self._send(remaining, version)
            except Exception:
                self._leave()
                drain(remaining)
                raise
        drain(remaining)
        return None

    def close(self) -> None:
        """Leave the group, close connections and drop the buffers; safe to call twice."""
        self._leave()
        sessions, self._sessions = self._sessions, None
        if sessions is not None:
            sessions.close()
        self._buffers = []

    def _send(self, weights: Iterator[tuple[str, torch.Tensor]], version: int) -> PushReport:
        sessions, group = self._sessions, self._group
        if sessions is None or group is None:
            raise SyncError(NOT_CONNECTED)
        tally, clock = Tally(), Clock(self._limit_s)
        sessions.start_each(clock).wait(clock)
        confirm: Callable[[], None] | None = None
        for number, bucket in enumerate(buckets(weights, self._buffers, self._capacity)):
            if confirm is not None:
                confirm()
            size, transfer_s = max(bucket.size, 1), clock.transfer()
            bucket.segment.reserve(size)
            answers = sessions.update_each(group_update_json(version, number, size, transfer_s, bucket.records), clock)
            group.send(bucket.segment.first(size), transfer_s)
            what = f"bucket {number} of version {version}"
            confirm = partial(group.confirm, answers, bucket_mark(version, number), what, clock)
            tally.add(bucket.records)
        if confirm is None:
            raise SyncError(NO_WEIGHTS)
        confirm()
        sessions.finish_each(version, clock)
        return tally.report(version)

    def _leave(self) -> None:
        group, self._group = self._group, None
        if group is not None:
            group.close()
