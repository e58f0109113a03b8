"""The visible-device plan: which devices each process of a run gets, and the environment that makes it see them.

Plain functions of pools, nodes and environments; nothing here asks a device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vime_core.errors import ResourceError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Visibility:
    """How processes are told which devices they may use, on one kind of accelerator."""

    masks: tuple[str, ...]
    """Variables that all get the same list."""
    peers: bool
    """Whether a process also sees the node's other devices, after its own. A HIP IPC handle carries the exporter's
    ordinal and is opened in the importer's enumeration, so that an importer needs as many devices as the exporter."""
    constants: Mapping[str, str]
    """Further variables of every process."""


@dataclass(frozen=True, slots=True)
class NodeDevices:
    """What one node offers to the run."""

    name: str
    entries: tuple[str, ...]
    """Each device as masks write it, in the order of the node's enumeration."""
    inherited: Mapping[str, str]
    """Visible-device variables that are set already and stay as they are."""


@dataclass(frozen=True, slots=True)
class Pools:
    """The processes that need devices."""

    ranks: int
    """Trainer ranks, one device each."""
    engines: int
    engine_devices: int
    """Devices of one engine, all on one node."""
    colocated: bool
    """Trainer rank i and an engine share device i; else no device is shared."""


@dataclass(frozen=True, slots=True)
class ChildPlan:
    """One process."""

    process: str
    node: str
    devices: tuple[int, ...]
    """Its own, as positions in `NodeDevices.entries`."""
    environment: Mapping[str, str]
    """Every visible-device variable that it finds, those of Ray included."""


def plan_children(pools: Pools, nodes: Sequence[NodeDevices], visibility: Visibility) -> list[ChildPlan]:
    """Trainer ranks, then engines.

    Raises:
        ResourceError: when the nodes offer too few devices.
    """
    placed = [*_ranks(pools, nodes), *_engines(pools, nodes)]
    wanted = pools.ranks + pools.engines
    if len(placed) < wanted:
        raise ResourceError(_too_few(pools, nodes))
    return [
        ChildPlan(process, nodes[node].name, own, child_variables(visibility, nodes[node], own))
        for process, node, own in placed
    ]


def child_variables(visibility: Visibility, node: NodeDevices, own: Sequence[int]) -> dict[str, str]:
    """The visible-device variables of a process.

    Args:
        visibility: of the accelerator.
        node: where the process runs.
        own: positions of its devices in `node.entries`; they come first, so that the process numbers them from 0.
    """
    order = list(own)
    if visibility.peers:
        order += [position for position in range(len(node.entries)) if position not in own]
    mask = ",".join(node.entries[position] for position in order)
    return {**node.inherited, **visibility.constants, **dict.fromkeys(visibility.masks, mask)}


def _slots(pools: Pools, nodes: Sequence[NodeDevices]) -> list[tuple[int, int]]:
    """(node, position) of every device: whole engines first, then what is left over on each node."""
    size = pools.engine_devices if pools.colocated else 1
    whole, left = [], []
    for index, node in enumerate(nodes):
        usable = len(node.entries) - len(node.entries) % size
        whole += [(index, position) for position in range(usable)]
        left += [(index, position) for position in range(usable, len(node.entries))]
    return whole + left


def _ranks(pools: Pools, nodes: Sequence[NodeDevices]) -> Iterator[tuple[str, int, tuple[int, ...]]]:
    for rank, (node, position) in enumerate(_slots(pools, nodes)[: pools.ranks]):
        yield f"trainer rank {rank}", node, (position,)


def _engines(pools: Pools, nodes: Sequence[NodeDevices]) -> Iterator[tuple[str, int, tuple[int, ...]]]:
    taken = set() if pools.colocated else set(_slots(pools, nodes)[: pools.ranks])
    engine, size = 0, pools.engine_devices
    for index, node in enumerate(nodes):
        free = [position for position in range(len(node.entries)) if (index, position) not in taken]
        for start in range(0, len(free) - size + 1, size):
            if engine == pools.engines:
                return
            yield f"engine {engine}", index, tuple(free[start : start + size])
            engine += 1


def _too_few(pools: Pools, nodes: Sequence[NodeDevices]) -> str:
    engine_devices = pools.engines * pools.engine_devices
    needed = max(pools.ranks, engine_devices) if pools.colocated else pools.ranks + engine_devices
    have = ", ".join(f"{len(node.entries)} on {node.name}" for node in nodes) or "none"
    masks = [f"{name}={value}" for node in nodes for name, value in node.inherited.items()]
    return (
        f"the run needs {needed} devices ({pools.ranks} trainer ranks, {pools.engines} engines of "
        f"{pools.engine_devices}, none across nodes) and there are {have}"
        + (f" (inherited: {', '.join(masks)})" if masks else "")
        + ": lower train.world_size or rollout.num_engines, or let the run see more devices"
    )
