"""The engine worker's end of the process group that carries weights."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from vime_core.accelerators.collective import Collective, backend_of, own_address
from vime_vllm.sync.answers import BROKE_OFF
from vime_vllm.sync.group_buffer import GroupBuffer
from vime_vllm.sync.weight_group import GREETED, GREETING_BYTES, PREFIX, arrival, progress
from vime_vllm.sync.wire import bucket_mark, read_bucket, require_checksum

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch.distributed import TCPStore

    from vime_vllm.sync.wire import TensorRecord


class GroupReader:
    """Receives the buckets that the trainer broadcasts, and copies tensors out of them.

    Args:
        device: the worker's.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffer = GroupBuffer(device)
        self._store: Any = None
        self._rank = -1
        self._collective: Collective | None = None
        self._version = -1
        """Of the weights that have arrived last."""
        self._arriving: int | None = None
        self._bucket = 0

    def join(self, info: dict[str, Any], worker: int) -> None:
        """Meet the trainer and the other workers.

        Args:
            info: as `weight_group.meet` sends it.
            worker: rank of this one within its engine.

        Raises:
            ValueError: when the trainer's tensors are on another kind of device, or it is another trainer.
            RuntimeError: when the others do not come in time.
        """
        import torch

        self.close()
        backend = backend_of(self._device)
        if info["backend"] != backend:
            raise ValueError(
                f"the trainer broadcasts over {info['backend']}, and this engine on {self._device} can over {backend}"
            )
        self._rank = info["first_rank"] + worker
        self._store = _in_group(lambda: _arrived(info, self._rank))
        self._collective = _in_group(lambda: _joined(info, self._rank, self._store))
        greeting = torch.empty(GREETING_BYTES, dtype=torch.uint8, device=self._device)
        self._receive(greeting, info["timeout_s"], GREETED)
        if bytes(greeting.tolist()).hex() != info["greeting"]:
            raise ValueError("whoever broadcasts is not the trainer that asked to join: its greeting is another")
        self._version = -1

    def begin(self) -> None:
        """Expect the first bucket of a new version."""
        self._arriving, self._bucket = None, 0

    def read(
        self, version: Any, bucket: Any, size: Any, timeout_s: Any, tensors: Any
    ) -> list[tuple[str, torch.Tensor]]:
        """Copies of all tensors of a bucket, each compared with its checksum.

        Args:
            version: of the weights, as received.
            bucket: number of the bucket within the push, from 0, as received.
            size: bytes of the bucket, as received.
            timeout_s: seconds to wait for them.
            tensors: `TensorRecord`s as JSON, as received.

        Raises:
            ValueError: when the bucket is not the one that is due, or a tensor is not what its record says.
            RuntimeError: when the bytes do not come in time.
        """
        if type(version) is not int or type(bucket) is not int or type(size) is not int or size < 1:
            raise ValueError(f"a bucket needs a version, a number and a size, not {version!r}, {bucket!r}, {size!r}")
        self._require_due(version, bucket)
        records = read_bucket(tensors, size)
        self._buffer.reserve(size)
        memory = self._buffer.first(size)
        self._receive(memory, timeout_s, bucket_mark(version, bucket))
        self._arriving, self._bucket = version, bucket + 1
        return [(record.name, _copy(memory, record)) for record in records]

    def finish(self) -> None:
        """Remember what has arrived."""
        if self._arriving is not None:
            self._version = self._arriving

    def close(self) -> None:
        """Leave the group; safe to call twice."""
        collective, self._collective, self._store = self._collective, None, None
        if collective is not None:
            collective.close()

    def _require_due(self, version: int, bucket: int) -> None:
        if version <= self._version:
            raise ValueError(f"version {version} of the weights is stale: version {self._version} is here already")
        if bucket != self._bucket or self._arriving not in (None, version):
            raise ValueError(
                f"bucket {bucket} of version {version} came, and bucket {self._bucket} "
                f"of {'a new version' if self._arriving is None else f'version {self._arriving}'} was due"
            )

    def _receive(self, memory: torch.Tensor, timeout_s: float, mark: str) -> None:
        collective = self._collective
        if collective is None:
            raise ValueError("this engine is in no group with a trainer")

        def received() -> None:
            collective.broadcast(memory, timeout_s)
            try:
                collective.wait(timeout_s)
            finally:
                # Without it, workers that wait in vain could not be told from the one that they wait for.
                self._store.set(progress(self._rank), mark)

        _in_group(received)


def _arrived(info: dict[str, Any], rank: int) -> TCPStore:
    from torch.distributed import TCPStore

    store = TCPStore(info["host"], info["port"], info["size"], False, timedelta(seconds=info["timeout_s"]))
    store.set(arrival(rank), "here")
    return store


def _joined(info: dict[str, Any], rank: int, store: TCPStore) -> Collective:
    from torch.distributed import PrefixStore

    return Collective(
        info["backend"],
        PrefixStore(PREFIX, store),
        rank,
        info["size"],
        address=own_address(info["host"]),
        timeout_s=info["timeout_s"],
    )


def _in_group(step: Callable[[], Any]) -> Any:
    """Do what needs the others; that it failed is their doing."""
    try:
        return step()
    except RuntimeError as error:
        raise RuntimeError(f"{BROKE_OFF}: {' '.join(str(error).split())}") from error


def _copy(memory: torch.Tensor, record: TensorRecord) -> torch.Tensor:
    """The layerwise reload keeps a tensor until its layer is complete, and the buffer is written anew."""
    import torch

    data = memory[record.offset : record.offset + record.size].clone()
    require_checksum(record, data.cpu().numpy().data)
    return data.view(getattr(torch, record.dtype)).reshape(record.shape)
