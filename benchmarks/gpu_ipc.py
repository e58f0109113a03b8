"""Two processes and one device IPC handle: `exchange` starts both; `python -m benchmarks.gpu_ipc` is one of them.

Both use the memory layer of the sync strategies `ipc` and `rocm_ipc`. The handle travels as JSON on a pipe.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vime_core.plugins.interfaces import Accelerator

ROOT = Path(__file__).resolve().parents[1]
BYTES = 1 << 22
DEADLINE_S = 120.0
MEMORY = {
    "cuda": ("vime_core.accelerators.device_memory", "CudaMemory"),
    "rocm": ("vime_rocm.memory", "RocmMemory"),
}
"""Name of the accelerator -> module and class of its device memory."""


def exchange(accelerator: Accelerator, exporter: int, importer: int) -> str | None:
    """What went wrong when a process on device `importer` read a buffer of a process on device `exporter`, or None."""
    out = _start(accelerator, "export", exporter)
    try:
        line = out.stdout.readline() if out.stdout else ""
        if not line:
            return f"export: {_end(out)}"
        into = _start(accelerator, "import", importer)
        told, errors = into.communicate(line, timeout=DEADLINE_S)
        if into.returncode:
            return f"import: {_last(errors)}"
        return None if told.strip() == "equal" else told.strip()
    finally:
        out.kill()
        out.communicate()


def _start(accelerator: Accelerator, role: str, device: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.gpu_ipc", role, accelerator.name],
        cwd=ROOT,
        env=os.environ | accelerator.child_environment([device], 1),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _end(process: subprocess.Popen[str]) -> str:
    _, errors = process.communicate(timeout=DEADLINE_S)
    return _last(errors)


def _last(errors: str) -> str:
    return next((line for line in reversed(errors.splitlines()) if line.strip()), "no output")


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
    print("equal" if torch.equal(buffer.cpu(), _pattern()) else "the bytes read are not those that were written")


if __name__ == "__main__":
    {"export": _export, "import": _import}[sys.argv[1]](sys.argv[2])
