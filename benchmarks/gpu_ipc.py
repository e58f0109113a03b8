"""Two processes and one device IPC handle: `exchange` starts both; `python -m benchmarks.gpu_ipc` is one of them.

Both use the memory layer of the sync strategies `ipc` and `rocm_ipc`. The handle travels as JSON on a pipe.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from benchmarks.gpu_pair import EQUAL, run_pair

if TYPE_CHECKING:
    from vime_core.plugins.interfaces import Accelerator

BYTES = 1 << 22
MEMORY = {
    "cuda": ("vime_core.accelerators.device_memory", "CudaMemory"),
    "rocm": ("vime_rocm.memory", "RocmMemory"),
}
"""Name of the accelerator -> module and class of its device memory."""


def exchange(accelerator: Accelerator, exporter: int, importer: int) -> str | None:
    """What went wrong when a process on device `importer` read a buffer of a process on device `exporter`, or None."""
    return run_pair("benchmarks.gpu_ipc", {"export": exporter, "import": importer}, accelerator, {})


def _memory(accelerator: str) -> Any:
    module, name = MEMORY[accelerator]
    return getattr(import_module(module), name)()


def _pattern() -> Any:
    import torch

    return torch.arange(BYTES // 4, dtype=torch.int32).view(torch.uint8)


def _export(accelerator: str) -> None:
    memory = _memory(accelerator)
    buffer = memory.allocate(BYTES)
    buffer.copy_(_pattern())
    memory.synchronize()
    print(json.dumps(memory.export(buffer)), flush=True)
    # The buffer lives as long as this process, which its parent ends.
    sys.stdin.read()


def _import(accelerator: str) -> None:
    import torch

    buffer = _memory(accelerator).open(json.loads(sys.stdin.readline()))
    print(EQUAL if torch.equal(buffer.cpu(), _pattern()) else "the bytes read are not those that were written")


if __name__ == "__main__":
    {"export": _export, "import": _import}[sys.argv[1]](sys.argv[2])
