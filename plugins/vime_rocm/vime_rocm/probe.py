"""Says why there is no usable AMD GPU; imports no torch."""

from __future__ import annotations

import os
import re
from importlib.util import find_spec
from pathlib import Path

KFD = Path("/dev/kfd")
"""The kernel's compute device; every ROCm process opens it."""
NODES = Path("/sys/class/kfd/kfd/topology/nodes")
"""What the kernel found; `gpu_id` is 0 for a node that is a CPU."""


def why_unavailable(kfd: Path = KFD, nodes: Path = NODES) -> str | None:
    """Why there is no usable HIP device here, or None."""
    if not kfd.exists():
        return f"no HIP device: {kfd} does not exist; load the amdgpu driver, or give the container --device {kfd}"
    if not os.access(kfd, os.R_OK | os.W_OK):
        return f"no HIP device: {kfd} cannot be opened; add the user to its group (video or render)"
    if not installed_gpus(nodes):
        return f"no HIP device: the kernel lists no GPU in {nodes}"
    return _wrong_torch()


def installed_gpus(nodes: Path = NODES) -> int:
    """GPUs in the kernel's enumeration that this process may use."""
    return sum(_is_gpu(node) for node in nodes.glob("*/gpu_id"))


def _is_gpu(gpu_id: Path) -> bool:
    try:
        return int(gpu_id.read_text()) != 0
    except (OSError, ValueError):  # nodes of GPUs that a container was not given cannot be read
        return False


def _wrong_torch() -> str | None:
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return "torch is not installed"
    return wrong_build(Path(spec.origin).parent / "version.py")


def wrong_build(version_file: Path) -> str | None:
    """Why a torch build cannot use ROCm, or None, from its `version.py`: ROCm builds need not say so in the version."""
    try:
        text = version_file.read_text(encoding="utf-8")
    except OSError as error:
        return f"{version_file} cannot be read: {error.strerror}"
    if re.search(r"^hip\b[^=\n]*=\s*['\"]", text, re.MULTILINE):
        return None
    version = re.search(r"^__version__\s*=\s*['\"]([^'\"]+)", text, re.MULTILINE)
    return f"torch {version.group(1) if version else 'here'} is not a ROCm build"
