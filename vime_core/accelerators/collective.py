"""A process group of its own, beside torch's default one: what the trainer and the workers of engines broadcast over.

`Collective` is all of it that needs a device: the same calls go to NCCL on NVIDIA GPUs, to RCCL, which torch calls
`nccl` too, on AMD GPUs, and to gloo on the CPU.
"""

from __future__ import annotations

import socket
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch.distributed import Store

HOST_BACKEND = "gloo"
DEVICE_BACKEND = "nccl"
SENDER = 0
"""Rank that broadcasts."""
SLACK_S = 1.0
"""An operation that ran past its deadline is given up so much later, for the backend to tell why."""


def backend_of(device: torch.device) -> str:
    """The backend for tensors of a device."""
    return HOST_BACKEND if device.type == "cpu" else DEVICE_BACKEND


def device_of(backend: str) -> torch.device:
    """Where this process's tensors are for a backend: the host, or the current device."""
    import torch

    return torch.device("cpu") if backend == HOST_BACKEND else torch.device("cuda", torch.cuda.current_device())


def own_address(host: str) -> str:
    """The address of this machine from which it reaches another, whose IP address is given; nothing is sent."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))
        return str(probe.getsockname()[0])


class Collective:
    """One rank of a group that broadcasts from rank 0. Making one waits for all ranks.

    Args:
        backend: `gloo` or `nccl`.
        store: at which the ranks meet.
        rank: of this process.
        size: ranks of the group.
        address: of this machine, for gloo to listen at; NCCL and RCCL read `NCCL_SOCKET_IFNAME`.
        timeout_s: seconds to meet.

    Raises:
        RuntimeError: when the ranks do not meet in time.
    """

    def __init__(self, backend: str, store: Store, rank: int, size: int, *, address: str, timeout_s: float) -> None:
        self.device = device_of(backend)
        self._group: Any = _group(backend, store, rank, size, address, timedelta(seconds=timeout_s))
        self._work: Any = None

    def broadcast(self, data: torch.Tensor, timeout_s: float) -> None:
        """Begin to send a tensor, or to receive into it; it must stay as it is until `wait` has returned.

        Args:
            data: contiguous, on `device`; as long on every rank.
            timeout_s: seconds after which it is given up.
        """
        from torch import distributed

        options = distributed.BroadcastOptions()
        options.rootRank, options.rootTensor, options.asyncOp = SENDER, 0, True
        options.timeout = timedelta(seconds=timeout_s)
        self._work = self._group.broadcast([data], options)

    def wait(self, timeout_s: float) -> None:
        """Return when what `broadcast` began is done on this rank.

        Raises:
            RuntimeError: when it is not in time, or another rank has gone.
        """
        if self._work is not None:
            self._work.wait(timedelta(seconds=timeout_s + SLACK_S))
            self._work = None

    def close(self) -> None:
        """Leave the group; the others are told at once, unless an operation hangs. Safe to call twice.

        The group's threads end with its last operation, which may be one that waits for a rank that hangs. Meanwhile a
        thread keeps both: dropping a group that is at work would block the whole process.
        """
        group, self._group, work, self._work = self._group, None, self._work, None
        if group is None:
            return
        group.abort()
        if work is not None and not work.is_completed():
            threading.Thread(target=_drop_when_done, args=(group, work), name="vime-weight-group", daemon=True).start()


def _group(backend: str, store: Store, rank: int, size: int, address: str, timeout: timedelta) -> Any:
    from torch import distributed

    if backend == HOST_BACKEND:
        gloo: Any = distributed.ProcessGroupGloo
        options = gloo._Options()
        options._devices = [gloo.create_device(hostname=address)]
        options._timeout = timeout
        return gloo(store, rank, size, options)
    nccl: Any = distributed.ProcessGroupNCCL
    options = nccl.Options()
    options._timeout = timeout
    return nccl(store, rank, size, options)


def _drop_when_done(group: Any, work: Any) -> None:
    try:
        work.wait()
    except RuntimeError:
        # It failed, as was to be expected.
        return
