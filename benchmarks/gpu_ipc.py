"""Two processes and one device IPC handle: `exchange` starts both; `python -m benchmarks.gpu_ipc` is one of them.

The handle travels as JSON on a pipe: its fields are numbers and bytes.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vime_core.plugins.interfaces import Accelerator

ROOT = Path(__file__).resolve().parents[1]
NUMBERS = 1 << 20
DEADLINE_S = 120.0
DEVICE = 6
"""Place of the device among the arguments that rebuild a tensor; the importer puts its own there."""


def exchange(accelerator: Accelerator, exporter: int, importer: int) -> str | None:
    """What went wrong when a process on device `importer` read a tensor of a process on device `exporter`, or None."""
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
        [sys.executable, "-m", "benchmarks.gpu_ipc", role],
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


def encode(arguments: tuple[Any, ...]) -> list[Any]:
    """The plain fields of a handle; the class and the element type are the importer's to choose."""
    return [{"bytes": base64.b64encode(item).decode()} if isinstance(item, bytes) else item for item in arguments]


def decode(fields: list[Any]) -> list[Any]:
    """Undo `encode`."""
    return [base64.b64decode(item["bytes"]) if isinstance(item, dict) else item for item in fields]


def _export() -> None:
    import torch
    from torch.multiprocessing.reductions import reduce_tensor

    tensor = torch.arange(NUMBERS, dtype=torch.int32, device="cuda:0")
    torch.cuda.synchronize()
    _, arguments = reduce_tensor(tensor)
    _, size, stride, offset, _, _, *rest = arguments
    print(json.dumps(encode((list(size), list(stride), offset, *rest))), flush=True)
    # The buffer lives as long as this process, which its parent ends.
    sys.stdin.read()


def _import() -> None:
    import torch
    from torch.multiprocessing.reductions import rebuild_cuda_tensor

    size, stride, offset, *rest = decode(json.loads(sys.stdin.readline()))
    arguments = [torch.Tensor, torch.Size(size), tuple(stride), offset, torch.UntypedStorage, torch.int32, *rest]
    arguments[DEVICE] = torch.cuda.current_device()
    tensor = rebuild_cuda_tensor(*arguments)
    wanted = torch.arange(NUMBERS, dtype=torch.int32)
    print("equal" if torch.equal(tensor.cpu(), wanted) else "the numbers read are not those that were written")


if __name__ == "__main__":
    {"export": _export, "import": _import}[sys.argv[1]]()
