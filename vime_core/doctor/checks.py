"""All checks of a node, in the order of the table."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from vime_core.cluster.limits import raise_open_files
from vime_core.config.schema import AcceleratorConfig
from vime_core.doctor import node, packages
from vime_core.doctor.devices import check_accelerator
from vime_core.plugins.auto import choose_accelerator
from vime_core.plugins.kinds import HOOK_ENTRIES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vime_core.accelerators.findings import Finding
    from vime_core.plugins.interfaces import Accelerator
    from vime_core.plugins.manager import Plugins

SHARED_MEMORY = Path("/dev/shm")


def check_node(plugins: Plugins) -> list[Finding]:
    """Run every check here: core's own, then those that the entries of plugins name."""
    return [
        node.check_host(),
        node.check_open_files(*raise_open_files()),
        node.check_shared_memory(SHARED_MEMORY),
        node.check_ports(),
        packages.check_torch(),
        packages.check_torchvision(),
        *_accelerators(plugins),
        packages.check_ray(_gpus(plugins)),
        *_of_plugins(plugins),
    ]


def _accelerators(plugins: Plugins) -> Iterator[Finding]:
    for name, registered in plugins.entries("accelerator").items():
        accelerator = registered.build(AcceleratorConfig(name=name))
        yield from check_accelerator(accelerator, registered.unavailable(), os.environ)


def _gpus(plugins: Plugins) -> int | None:
    """Devices of the accelerator that `auto` stands for; None when that is the CPU."""
    registered = choose_accelerator(plugins)
    accelerator: Accelerator = registered.build(AcceleratorConfig(name=registered.entry.name))
    return accelerator.device_count() if accelerator.ray_resource == "GPU" else None


def _of_plugins(plugins: Plugins) -> Iterator[Finding]:
    """Each function once, however many entries name it."""
    groups = [entry.group for entry in HOOK_ENTRIES.values()]
    named = {
        registered.entry.doctor: None
        for group in groups
        for registered in plugins.entries(group).values()
        if registered.entry.doctor is not None
    }
    for place in named:
        module, _, function = place.partition(":")
        yield from getattr(import_module(module), function)()
