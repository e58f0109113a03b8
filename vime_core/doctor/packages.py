"""Checks of what is installed: torch, torchvision, Ray."""

from __future__ import annotations

import re
from importlib import metadata
from typing import TYPE_CHECKING

from vime_core.accelerators.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PIN = re.compile(r"^torch\s*\(?==\s*([0-9][^\s;,)]*)")


def installed(name: str) -> str | None:
    """Version of a distribution, or None."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def requirements(name: str) -> Sequence[str]:
    """What a distribution asks for."""
    return metadata.requires(name) or ()


def check_torch(version: Callable[[str], str | None] = installed) -> Finding:
    """torch must be there."""
    torch = version("torch")
    if torch is None:
        return Finding(
            "torch", "problem", "not installed", "install the build for your devices: CPU, CUDA, or AMD's for ROCm"
        )
    return Finding("torch", "ok", torch)


def check_torchvision(
    version: Callable[[str], str | None] = installed, required: Callable[[str], Sequence[str]] = requirements
) -> Finding:
    """A torchvision of another torch fails as vLLM is imported, with a message about a missing operator."""
    torch, vision = version("torch"), version("torchvision")
    if torch is None or vision is None:
        return Finding("torchvision", "ok", "not installed" if vision is None else f"{vision}, without torch")
    wanted = next((match.group(1) for item in required("torchvision") if (match := PIN.match(item))), None)
    if wanted is not None and wanted.split("+")[0] != torch.split("+")[0]:
        return Finding(
            "torchvision",
            "problem",
            f"torchvision {vision} is built for torch {wanted}, and torch is {torch}",
            "install the torchvision of that torch from the same index, or uninstall it: vime does not need it",
        )
    if _build(torch) != _build(vision) and _build(torch) and _build(vision):
        return Finding(
            "torchvision",
            "warning",
            f"torchvision {vision} and torch {torch} are of different builds",
            "install both from the same index",
        )
    return Finding("torchvision", "ok", vision)


def check_ray(devices: int | None, count: Callable[[], int] | None = None) -> Finding:
    """Ray counts a node's devices by itself; a run tells it how many it may use.

    Args:
        devices: that the accelerator offers here; None without one.
        count: what Ray counts.
    """
    version = installed("ray")
    if version is None:
        return Finding("ray", "problem", "not installed", "install vime-core again: it requires ray")
    try:
        seen = (count or _counted_by_ray)()
    except RuntimeError as error:
        return Finding(
            "ray",
            "warning",
            f"{version}: {error}",
            "a Ray that vime starts is not affected, it gets both variables; set them alike before ray start",
        )
    if devices is not None and seen < devices:
        return Finding(
            "ray",
            "warning",
            f"{version} counts {seen} GPUs and the accelerator {devices}",
            "runs of one node are not affected; when nodes are started by hand, pass ray start --num-gpus",
        )
    return Finding("ray", "ok", f"{version}; it counts {seen} GPUs")


def _counted_by_ray() -> int:
    from ray._private.accelerators import get_accelerator_manager_for_resource

    manager = get_accelerator_manager_for_resource("GPU")
    # Raises when ROCR_VISIBLE_DEVICES is set without HIP_VISIBLE_DEVICES.
    manager.get_visible_accelerator_ids_env_var()
    return int(manager.get_current_node_num_accelerators())


def _build(version: str) -> str:
    return version.partition("+")[2]
