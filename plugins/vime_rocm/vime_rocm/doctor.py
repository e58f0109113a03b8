"""What `vime doctor` checks of ROCm beyond devices and masks."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from vime_core.accelerators.findings import Finding
from vime_rocm.probe import KFD

if TYPE_CHECKING:
    from collections.abc import Mapping

DRIVER = Path("/sys/module/amdgpu/version")
RELEASE = Path("/opt/rocm/.info/version")
LEGACY_IPC = "HSA_ENABLE_IPC_MODE_LEGACY"


def findings() -> list[Finding]:
    """Of this node; nothing where there is no amdgpu driver."""
    return check_rocm(os.environ) if KFD.exists() else []


def check_rocm(environment: Mapping[str, str], driver: Path = DRIVER, release: Path = RELEASE) -> list[Finding]:
    """Driver, ROCm, amdsmi, and variables that are known to break IPC."""
    return [_versions(driver, release), _amdsmi(find_spec("amdsmi") is not None), _legacy_ipc(environment)]


def _versions(driver: Path, release: Path) -> Finding:
    told = f"amdgpu {_read(driver) or 'of the kernel'}, ROCm {_read(release) or 'not found in /opt/rocm'}"
    return Finding("rocm", "ok", told)


def _amdsmi(there: bool) -> Finding:
    if there:
        return Finding("amdsmi", "ok", "installed")
    return Finding(
        "amdsmi",
        "problem",
        "not installed: vLLM finds AMD GPUs through it, and takes this node for one without",
        "install it from ROCm: pip install /opt/rocm/share/amd_smi, or use a ROCm vLLM container",
    )


def _legacy_ipc(environment: Mapping[str, str]) -> Finding:
    if environment.get(LEGACY_IPC) == "1":
        return Finding(
            "hip ipc",
            "warning",
            f"{LEGACY_IPC}=1: on some ROCm versions exporting an IPC handle then fails (hipErrorInvalidValue)",
            f"unset {LEGACY_IPC} if pushes with sync=rocm_ipc fail so",
        )
    return Finding("hip ipc", "ok", f"{LEGACY_IPC} is not 1")


def _read(file: Path) -> str | None:
    return file.read_text(encoding="utf-8").strip() if file.is_file() else None
