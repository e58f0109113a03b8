"""Sync strategy `ipc`: weights through device memory, for trainer ranks and engines that share their devices."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from vime_core.accelerators.device_memory import CudaMemory
from vime_core.cluster.hosts import memory_identity
from vime_core.errors import ResourceError, SyncError
from vime_vllm.sync.bucket import buckets
from vime_vllm.sync.control import WeightSessions
from vime_vllm.sync.device_buffer import DeviceBuffer
from vime_vllm.sync.push import NO_WEIGHTS, NOT_CONNECTED, Tally, drain, push_deadline
from vime_vllm.sync.ranks import Ranks
from vime_vllm.sync.wire import device_update_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from concurrent.futures import Future

    import torch

    from vime_core.accelerators.device_memory import DeviceMemory
    from vime_core.types import EngineEndpoint, PushReport
    from vime_vllm.config import IpcConfig

BUFFERS = 2
"""The trainer fills one while the engines read the other."""


class IpcSync:
    """Implements `SyncStrategy`. Every rank packs the same buckets on its own device; rank 0 talks to the engines.

    Each worker of an engine opens the buffers of the rank on its device, by the device's UUID. The buffers and their
    handles live until the strategy is closed: a handle that no engine opens, for a rank whose device no engine has,
    would otherwise keep its memory from ever being freed.
    """

    def __init__(
        self, config: IpcConfig, rank: int, world_size: int, memory: Callable[[], DeviceMemory] = CudaMemory
    ) -> None:
        """The deadline comes from the environment, `VIME_PUSH_DEADLINE_S`; `memory` makes what this rank packs into."""
        self._rank = rank
        self._name = config.name
        self._ranks = Ranks(world_size)
        self._deadline_s = push_deadline()
        self._capacity = (config.bucket_mib << 20) // BUFFERS
        self._make_memory = memory
        self._memory: DeviceMemory | None = None
        self._buffers: list[DeviceBuffer] = []
        self._sessions: WeightSessions | None = None

    def connect(self, endpoints: Sequence[EngineEndpoint]) -> None:
        """Prepare every engine for pushes; collective.

        Raises:
            ResourceError: when two ranks share a device, or an engine is on a host without trainer ranks.
            SyncError: names the engine that could not be, e.g. as no rank is on its device.
        """
        memory = self._memory = self._make_memory()
        self._buffers = [DeviceBuffer(memory) for _ in range(BUFFERS)]
        places = self._ranks.together(lambda: (memory.uuid, memory_identity()))
        if self._rank == 0:
            _require_own_devices([uuid for uuid, _ in places])
            self._require_reach(endpoints, {host for _, host in places})
            self._sessions = WeightSessions(endpoints, self._deadline_s)
            self._sessions.init({"devices": [uuid for uuid, _ in places]})

    def push(self, weights: Iterable[tuple[str, torch.Tensor]], version: int) -> PushReport | None:
        """Move all weights into all engines, see `SyncStrategy.push`.

        Raises:
            SyncError: on every rank: names the engine or device that failed and why; no engine can be used afterwards.
        """
        remaining = iter(weights)
        try:
            if self._memory is not None:
                return self._send(self._memory, remaining, version)
            if self._rank == 0:
                raise SyncError(NOT_CONNECTED)
        except Exception:
            drain(remaining)
            raise
        drain(remaining)
        return None

    def close(self) -> None:
        """Close connections and give the buffers back; safe to call twice."""
        sessions, self._sessions = self._sessions, None
        if sessions is not None:
            sessions.close()
        memory, self._memory = self._memory, None
        for buffer in self._buffers:
            buffer.close()
        if memory is not None:
            memory.collect()

    def _send(
        self, memory: DeviceMemory, weights: Iterator[tuple[str, torch.Tensor]], version: int
    ) -> PushReport | None:
        tally = Tally()
        loading = _Loading(self._sessions)
        self._ranks.together(loading.start)
        for turn, bucket in enumerate(buckets(weights, self._buffers, self._capacity)):
            buffer = bucket.segment

            def packed(buffer: DeviceBuffer = buffer) -> tuple[str, dict[str, Any]]:
                loading.wait()  # the next bucket goes where the one that is waited for was
                return memory.uuid, buffer.handle()

            handles = dict(self._ranks.together(packed))
            loading.update(device_update_json(turn % BUFFERS, handles, bucket.records))
            tally.add(bucket.records)
        self._ranks.together(lambda: loading.finish(version))
        memory.collect()
        return tally.report(version) if self._rank == 0 else None

    def _require_reach(self, endpoints: Sequence[EngineEndpoint], hosts: set[str]) -> None:
        away = [endpoint for endpoint in endpoints if endpoint.host not in hosts]
        if away:
            raise ResourceError(
                f"sync={self._name} moves weights within devices, and {away[0].name} at {away[0].url} is on a host "
                "without trainer ranks (or in a container with a /dev/shm of its own): place engines where the ranks "
                "are, or choose another sync strategy"
            )


class _Loading:
    """What the engines are at; on the ranks that do not talk to them, nothing."""

    def __init__(self, sessions: WeightSessions | None) -> None:
        self._sessions = sessions
        self._bucket: Future[Any] | None = None

    def start(self) -> None:
        if self._sessions is not None:
            self._sessions.start()

    def update(self, info: Any) -> None:
        if self._sessions is not None:
            self._bucket = self._sessions.update(info)

    def wait(self) -> None:
        if self._bucket is not None:
            self._bucket.result()

    def finish(self, version: int) -> None:
        if self._sessions is not None:
            if self._bucket is None:
                raise SyncError(NO_WEIGHTS)
            self._bucket.result()
            self._sessions.finish(version)


def _require_own_devices(uuids: Sequence[str]) -> None:
    uuid, count = Counter(uuids).most_common(1)[0]
    if count > 1:
        ranks = " and ".join(str(rank) for rank, found in enumerate(uuids) if found == uuid)
        raise ResourceError(f"trainer ranks {ranks} are on one device, {uuid}: each needs one of its own")
