"""The nodes of a run: a Ray of its own or a cluster that it joins, and where on it each process goes."""

from __future__ import annotations

import logging
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from vime_core.accelerators.network import LOOPBACK_ENVIRONMENT
from vime_core.cluster.joined import JoinedRay
from vime_core.cluster.nodes import NodeGroup, NodeNeeds
from vime_core.cluster.placement import NodeMarks, Placement
from vime_core.cluster.runtime import LOOPBACK, RayRuntime
from vime_core.loop.shared_memory import check_one_memory
from vime_core.models.fingerprint import model_fingerprint
from vime_core.plugins.discovery import blocked_names
from vime_core.run.versions import installed_versions
from vime_core.types import NodePlace

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from vime_core.loop.inputs import Inputs
    from vime_core.run.folder import RunFolder

log = logging.getLogger(__name__)


class Cluster:
    """Where the processes of a run go.

    Args:
        inputs: what the run is made from.
        placement: its devices, reserved.
        places: the node of each bundle.
        group: looks after the nodes of a cluster that was joined.
    """

    def __init__(
        self, inputs: Inputs, placement: Placement, places: Sequence[NodePlace], group: NodeGroup | None = None
    ) -> None:
        self._group = group
        self._inputs = inputs
        self._placement = placement
        self._places = places

    def check(self) -> None:
        """Return at once when all nodes are well, see `NodeGroup.check`; to be asked regularly."""
        if self._group is not None:
            self._group.check()

    def trainer_options(self, rank: int, environment: Mapping[str, str]) -> dict[str, Any]:
        """Ray actor options of a trainer rank, with more variables for it."""
        return self._options([rank], self._inputs.threads.trainer, environment)

    def trainer_place(self, rank: int) -> NodePlace:
        """Node of a trainer rank."""
        return self._places[rank]

    def engine_options(self, engine: int) -> dict[str, Any]:
        """Ray actor options of an engine's owner."""
        # The devices of an engine are on one host: they talk to each other there.
        bundles = self._inputs.layout.engine_bundles(engine)
        return self._options(bundles, self._inputs.threads.engine, LOOPBACK_ENVIRONMENT)

    def engine_place(self, engine: int) -> NodePlace:
        """Node of an engine."""
        return self._places[self._inputs.layout.engine_bundles(engine)[0]]

    def _options(self, bundles: Sequence[int], threads: int, environment: Mapping[str, str]) -> dict[str, Any]:
        inputs = self._inputs
        devices = inputs.accelerator.child_environment(self._placement.positions(bundles), threads)
        # A cluster that was joined was started without it.
        return self._placement.options(bundles[0], {**inputs.ray_environment, **devices, **environment})


@contextmanager
def cluster(inputs: Inputs, run_id: str, keeper: str, folder: RunFolder) -> Iterator[Cluster]:
    """Start or join Ray, reserve devices, and check every node that they are on.

    Args:
        inputs: what the run is made from.
        run_id: of the run.
        keeper: address of the keeper of the driver's node.
        folder: of the run.

    Raises:
        VimeError: the first cause, when that cannot be done, or when weights could not be pushed from there to there.
    """
    config = inputs.config
    with ExitStack() as stack:
        stack.enter_context(_ray(inputs, keeper))
        marks = NodeMarks(trainer=config.cluster.train_resource, engines=config.cluster.rollout_resource)
        placement = Placement(inputs.layout, inputs.accelerator.ray_resource, marks)
        stack.callback(placement.remove)
        placement.create(config.deadlines.start)
        if config.cluster.address is None:
            # One node, the driver's: its keeper and its plugins.
            yield Cluster(inputs, placement, [NodePlace(address=LOOPBACK, keeper=keeper)] * inputs.layout.bundles)
            return
        nodes = [placement.node(bundle) for bundle in range(inputs.layout.bundles)]
        group = NodeGroup(_needs(inputs, run_id, folder), config.deadlines.start)
        stack.callback(group.close)
        places = group.start(nodes)
        _tell(inputs, nodes, places)
        joined = Cluster(inputs, placement, [places[node] for node in nodes], group)
        check_one_memory(
            inputs.composed.components["sync"].entry,
            joined.trainer_place(0),
            {f"engine-{engine}": joined.engine_place(engine) for engine in range(inputs.layout.engines)},
        )
        yield joined


def _tell(inputs: Inputs, nodes: Sequence[str], places: Mapping[str, NodePlace]) -> None:
    parts = {f"trainer rank {rank}": rank for rank in range(inputs.layout.ranks)}
    parts |= {f"engine-{engine}": inputs.layout.engine_bundles(engine)[0] for engine in range(inputs.layout.engines)}
    for name, bundle in parts.items():
        log.info("on node %s, at %s", nodes[bundle], places[nodes[bundle]].address, extra={"actor": name})


def _ray(inputs: Inputs, keeper: str) -> RayRuntime | JoinedRay:
    config = inputs.config
    if config.cluster.address is not None:
        return JoinedRay(config.cluster.address, inputs.ray_environment)
    resources = {"CPU": max(inputs.layout.bundles, 1), "GPU": 0}
    if inputs.accelerator.ray_resource == "GPU":
        resources["GPU"] = inputs.accelerator.device_count()
    return RayRuntime(
        resources=resources,
        object_store_bytes=config.cluster.object_store_mib << 20,
        keeper=keeper,
        environment=inputs.ray_environment,
    )


def _needs(inputs: Inputs, run_id: str, folder: RunFolder) -> NodeNeeds:
    return NodeNeeds(
        run_id=run_id,
        plugins=inputs.composed.plugins.versions(),
        blocked_plugins=tuple(sorted(blocked_names(inputs.config.plugins.block))),
        versions=installed_versions(),
        model_path=inputs.model.path.absolute(),
        model=model_fingerprint(inputs.model.path),
        log_folder=folder.logs,
        log_file=folder.log_file,
        health_deadline_s=inputs.config.deadlines.health,
        stop_deadline_s=inputs.config.deadlines.stop,
    )
