"""Which bundle of devices each process of a run gets, and on which nodes the bundles are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vime_core.errors import DeadlineError, ResourceError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MARK_SHARE = 0.001
"""Of the resource that marks a node, for each bundle: a node marked with 1 takes a thousand."""


@dataclass(frozen=True, slots=True)
class BundleLayout:
    """How many devices a run needs; plain arithmetic, checked before any process starts."""

    ranks: int
    engines: int
    devices_per_engine: int
    shared: bool = True
    """Trainer rank i and an engine take turns on bundle i; else the engines' bundles come after those of the ranks."""

    @property
    def bundles(self) -> int:
        """One bundle a device; trainer rank i is on bundle i."""
        engines = self.engines * self.devices_per_engine
        return max(self.ranks, engines) if self.shared else self.ranks + engines

    def engine_bundles(self, engine: int) -> range:
        """Bundles of one engine."""
        start = engine * self.devices_per_engine + (0 if self.shared else self.ranks)
        return range(start, start + self.devices_per_engine)


@dataclass(frozen=True, slots=True)
class NodeMarks:
    """Ray resources that only some nodes have; a part of the run goes to those. None: to any."""

    trainer: str | None = None
    engines: str | None = None


class Placement:
    """A Ray placement group for a layout.

    Args:
        layout: what is placed.
        resource: Ray's name for a device, `CPU` or `GPU`.
        marks: which nodes it goes to.
    """

    SHARE = 0.5
    """Of its bundle's device; trainer and engine may share one."""

    def __init__(self, layout: BundleLayout, resource: str, marks: NodeMarks | None = None) -> None:
        self._layout = layout
        self._resource = resource
        self._marks = marks or NodeMarks()
        self._group: Any = None
        self._nodes: list[str] = []

    def create(self, deadline_s: float) -> None:
        """Reserve the bundles.

        Raises:
            ResourceError: when the cluster has too few devices, or an engine's are on several nodes.
            DeadlineError: when Ray does not grant them in time.
        """
        import ray
        from ray.util.placement_group import placement_group, placement_group_table

        bundles = [self._bundle(index) for index in range(self._layout.bundles)]
        self._check_devices(ray.nodes())
        self._group = placement_group(bundles, strategy="PACK")
        if not self._group.wait(deadline_s):
            free = int(ray.available_resources().get(self._resource, 0))
            raise DeadlineError(
                f"Ray did not grant {len(bundles)} {self._resource} within {deadline_s:g} s: {free} are free, the "
                "others are in use, or spread in pieces over the nodes"
            )
        nodes = placement_group_table(self._group)["bundles_to_node_id"]
        self._nodes = [nodes[index] for index in range(len(bundles))]
        self._check_engines()

    def node(self, bundle: int) -> str:
        """Ray's id of the node that a bundle is on."""
        return self._nodes[bundle]

    def positions(self, bundles: Sequence[int]) -> list[int]:
        """Which of their node's devices they are: numbers from 0 in the order of the node's bundles."""
        return [self._nodes[:bundle].count(self._nodes[bundle]) for bundle in bundles]

    def options(self, bundle: int, environment: Mapping[str, str]) -> dict[str, Any]:
        """Ray actor options for a process on `bundle`."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        options: dict[str, Any] = {
            "num_cpus": self.SHARE,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(
                placement_group=self._group, placement_group_bundle_index=bundle
            ),
            "runtime_env": {"env_vars": dict(environment)},
            "max_restarts": 0,
        }
        if self._resource == "GPU":
            options["num_gpus"] = self.SHARE
        return options

    def remove(self) -> None:
        """Give the bundles back; safe when there are none."""
        from ray.util.placement_group import remove_placement_group

        group, self._group = self._group, None
        if group is not None:
            remove_placement_group(group)

    def _bundle(self, index: int) -> dict[str, float]:
        mark = self._mark(index)
        return {"CPU": 1.0, self._resource: 1.0} | ({mark: MARK_SHARE} if mark else {})

    def _mark(self, index: int) -> str | None:
        """Of a layout that shares bundles, all are the trainer's."""
        shared, ranks = self._layout.shared, self._layout.ranks
        return self._marks.trainer if shared or index < ranks else self._marks.engines

    def _check_devices(self, nodes: Sequence[Mapping[str, Any]]) -> None:
        layout = self._layout
        marks = [self._mark(index) for index in range(layout.bundles)]
        for mark in dict.fromkeys(marks):
            offered = [
                node["Resources"]
                for node in nodes
                if node["Alive"] and (mark is None or node["Resources"].get(mark, 0) >= MARK_SHARE)
            ]
            have = sum(int(resources.get(self._resource, 0)) for resources in offered)
            # What goes to any node may be anywhere, so it counts against all there is.
            need = len(marks) if mark is None else marks.count(mark)
            if have < need:
                where = f"nodes with the resource {mark} have" if mark else "Ray has"
                raise ResourceError(
                    f"the run needs {need} {self._resource} (train.world_size={layout.ranks}, "
                    f"rollout.num_engines={layout.engines}) and {where} {have}"
                )

    def _check_engines(self) -> None:
        for engine in range(self._layout.engines):
            nodes = {self._nodes[bundle] for bundle in self._layout.engine_bundles(engine)}
            if len(nodes) > 1:
                raise ResourceError(
                    f"engine {engine} needs rollout.tensor_parallel_size={self._layout.devices_per_engine} "
                    f"{self._resource} of one node, and Ray gave it some of {len(nodes)}: lower it, or free a node"
                )
