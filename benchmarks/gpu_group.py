"""Two processes in one process group: `broadcast` starts both; `python -m benchmarks.gpu_group` is one of them.

Both use `Collective`, as the sync strategy `nccl` does: NCCL, RCCL on ROCm, gloo on the CPU. The port of the store at
which they meet travels on a pipe.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from benchmarks.gpu_pair import EQUAL, run_pair
from vime_core.accelerators.collective import Collective
from vime_core.accelerators.network import LOOPBACK_ENVIRONMENT
from vime_core.config.schema import AcceleratorConfig
from vime_core.plugins.manager import load_plugins

if TYPE_CHECKING:
    from vime_core.plugins.interfaces import Accelerator

HOST = "127.0.0.1"
BYTES = 1 << 22
TIMES = 3
MEET_S = 60.0


def broadcast(accelerator: Accelerator, sender: int, receiver: int) -> str | None:
    """What went wrong when a process on device `sender` sent bytes to a process on device `receiver`, or None."""
    return run_pair("benchmarks.gpu_group", {"send": sender, "receive": receiver}, accelerator, LOOPBACK_ENVIRONMENT)


def _pattern(turn: int) -> Any:
    import torch

    return (torch.arange(BYTES // 4, dtype=torch.int32) + turn).view(torch.uint8)


def _backend(name: str) -> str:
    accelerator: Accelerator = load_plugins().select("accelerator", name).load()(AcceleratorConfig(name=name))
    accelerator.prepare_process(1)
    return accelerator.torch_backend


def _send(accelerator: str) -> None:
    from torch.distributed import TCPStore

    backend = _backend(accelerator)
    store = TCPStore(HOST, 0, 2, True, wait_for_workers=False)
    print(store.port, flush=True)
    met = Collective(backend, store, 0, 2, address=HOST, timeout_s=MEET_S)
    for turn in range(TIMES):
        met.broadcast(_pattern(turn).to(met.device), MEET_S)
        met.wait(MEET_S)
    # The store lives as long as this process, which its parent ends.
    sys.stdin.read()


def _receive(accelerator: str) -> None:
    import torch
    from torch.distributed import TCPStore

    backend = _backend(accelerator)
    store = TCPStore(HOST, int(sys.stdin.readline()), 2, False)
    met = Collective(backend, store, 1, 2, address=HOST, timeout_s=MEET_S)
    found = torch.empty(BYTES, dtype=torch.uint8, device=met.device)
    for turn in range(TIMES):
        met.broadcast(found, MEET_S)
        met.wait(MEET_S)
        if not torch.equal(found.cpu(), _pattern(turn)):
            print(f"the bytes of broadcast {turn} are not those that were sent")
            return
    met.close()
    print(EQUAL)


if __name__ == "__main__":
    {"send": _send, "receive": _receive}[sys.argv[1]](sys.argv[2])
