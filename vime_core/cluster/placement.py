"""Which bundle of devices each process of a run gets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vime_core.errors import DeadlineError, ResourceError

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Layout:
    """How many devices a colocated run needs; plain arithmetic, checked before any process starts."""

    ranks: int
    engines: int
    devices_per_engine: int

    @property
    def bundles(self) -> int:
        """One bundle a device: trainer rank i and an engine take turns on bundle i."""
        return max(self.ranks, self.engines * self.devices_per_engine)

    def engine_bundles(self, engine: int) -> range:
        """Bundles of one engine."""
        start = engine * self.devices_per_engine
        return range(start, start + self.devices_per_engine)


class Placement:
    """A Ray placement group for a layout.

    Args:
        layout: what is placed.
        resource: Ray's name for a device, `CPU` or `GPU`.
    """

    SHARE = 0.5
    """Of its bundle's device; trainer and engine share one."""

    def __init__(self, layout: Layout, resource: str) -> None:
        self._layout = layout
        self._resource = resource
        self._group: Any = None

    def create(self, deadline_s: float) -> None:
        """Reserve the bundles.

        Raises:
            ResourceError: when the cluster has too few devices.
            DeadlineError: when Ray does not grant them in time.
        """
        import ray
        from ray.util.placement_group import placement_group

        have = int(ray.cluster_resources().get(self._resource, 0))
        if have < self._layout.bundles:
            raise ResourceError(
                f"the run needs {self._layout.bundles} {self._resource} (train.world_size={self._layout.ranks}, "
                f"rollout.num_engines={self._layout.engines}) and Ray has {have}"
            )
        self._group = placement_group([self._bundle() for _ in range(self._layout.bundles)], strategy="PACK")
        if not self._group.wait(deadline_s):
            raise DeadlineError(f"Ray did not grant {self._layout.bundles} {self._resource} within {deadline_s:g} s")

    def _bundle(self) -> dict[str, float]:
        return {"CPU": 1.0} if self._resource == "CPU" else {"CPU": 1.0, self._resource: 1.0}

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
