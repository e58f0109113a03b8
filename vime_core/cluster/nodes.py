"""What a run needs on every node of a cluster that it joined: the same software and files, and a keeper."""

from __future__ import annotations

import os
import platform
import threading
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any

from vime_core.cluster.calls import gather
from vime_core.cluster.hosts import loopback_identity, memory_identity
from vime_core.cluster.node_keeper import NodeKeeper
from vime_core.errors import KeeperError, ModelError, PluginError, RunFolderError, TrainerError, VimeError
from vime_core.models.fingerprint import model_fingerprint
from vime_core.plugins.manager import load_plugins
from vime_core.types import NodePlace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

LOOPBACK = "127.0.0.1"
POLL_S = 0.5
CONCURRENT_CALLS = 4
"""An agent watches its keeper while it is asked to end it."""
CLOSED_MODES = ("token", "k8s")
"""Values of `RAY_AUTH_MODE` under which Ray asks who connects."""


@dataclass(frozen=True, slots=True)
class NodeNeeds:
    """What the driver has and every node must have too; plain data."""

    run_id: str
    plugins: Mapping[str, tuple[str, str]]
    """Plugin -> (distribution, version)."""
    blocked_plugins: tuple[str, ...]
    versions: Mapping[str, str]
    """`python`, or name of a distribution -> version."""
    model_path: Path
    model: Mapping[str, str]
    """`model_fingerprint` of it."""
    log_folder: Path
    """Made by the driver in the run folder."""
    log_file: Path
    health_deadline_s: float
    stop_deadline_s: float


@dataclass(frozen=True, slots=True)
class NodeState:
    """What a node tells of itself."""

    address: str
    loopback: str
    """See `loopback_identity`."""
    memory: str
    """See `memory_identity`."""
    keeper: str


class NodeAgent:
    """Runs on one node, in a Ray actor that ends with the driver; then the node's keeper cleans up there."""

    def __init__(self, needs: NodeNeeds) -> None:
        """Nothing is looked at before `check`."""
        self._needs = needs
        self._closing = threading.Event()
        self._keeper: NodeKeeper | None = None

    def check(self) -> None:
        """Compare the node with the driver's.

        Raises:
            PluginError: other plugins or versions, or a Ray that lets anyone in.
            ModelError: no model, or another one, at the path.
            RunFolderError: the run folder is not to be seen here.
        """
        needs, where = self._needs, f"node {node_address()}"
        if os.environ.get("RAY_AUTH_MODE", "").lower() not in CLOSED_MODES:
            raise PluginError(
                f"{where} runs a Ray that lets anyone in: start it with RAY_AUTH_MODE=token and the cluster's token"
            )
        plugins = load_plugins(needs.blocked_plugins).versions()
        if told := differences(needs.plugins, plugins, "node"):
            raise PluginError(f"{where} sees other plugins than the driver: {told}")
        if told := differences(needs.versions, installed(needs.versions), "node"):
            raise PluginError(f"{where} has other versions than the driver: {told}")
        self._check_files(where)

    def start(self) -> NodeState:
        """Start the node's keeper."""
        needs = self._needs
        self._keeper = NodeKeeper(
            needs.run_id,
            needs.log_folder,
            health_deadline_s=needs.health_deadline_s,
            log_file=needs.log_file,
            deadline_s=needs.stop_deadline_s,
        )
        return NodeState(node_address(), loopback_identity(), memory_identity(), self._keeper.address)

    def watch(self) -> None:
        """Return when the run has ended.

        Raises:
            KeeperError: when the keeper has ended before, or has been stopped for too long.
        """
        keeper = self._keeper
        while keeper is not None and not self._closing.wait(POLL_S):
            try:
                keeper.check()
            except VimeError as error:
                if not self._closing.is_set():
                    raise KeeperError(f"node {node_address()}: {error}") from error

    def close(self) -> None:
        """The run ends in order; safe to call twice and before `start`."""
        self._closing.set()
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.close()

    def _check_files(self, where: str) -> None:
        needs = self._needs
        if not needs.log_folder.is_dir():
            raise RunFolderError(
                f"{where} does not see the run folder {needs.log_folder.parent}: put run.root on a file system that "
                "all nodes share"
            )
        if not (needs.model_path / "config.json").is_file():
            raise ModelError(f"{where} has no model at {needs.model_path}: put it there, or on a shared file system")
        if told := sorted(set(needs.model.items()) ^ set(model_fingerprint(needs.model_path).items())):
            raise ModelError(f"{where} has another model at {needs.model_path}: {told[0][0]} differs; copy it anew")


class NodeGroup:
    """The agents of all nodes of a run, seen from the driver.

    Args:
        needs: what every node must have.
        deadline_s: for the start of each step of it.
    """

    def __init__(self, needs: NodeNeeds, deadline_s: float) -> None:
        self._needs = needs
        self._deadline_s = deadline_s
        self._agents: dict[str, Any] = {}
        self._names: dict[Any, str] = {}
        """Reference to the answer of each agent's `watch` -> name of its node."""

    def start(self, nodes: Sequence[str]) -> dict[str, NodePlace]:
        """Check all nodes, then start a keeper on each.

        Args:
            nodes: Ray node ids.

        Returns:
            Ray node id -> where processes on it listen, and their keeper.

        Raises:
            UserError: names the node that differs from the driver's, and how, or that cannot run vime.
            TrainerError: a node's agent died later.
            DeadlineError: a node did not answer in time.
        """
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        agent = ray.remote(num_cpus=0, max_restarts=0, max_concurrency=CONCURRENT_CALLS)(NodeAgent)
        for node in dict.fromkeys(nodes):
            strategy = NodeAffinitySchedulingStrategy(node, soft=False)
            self._agents[node] = agent.options(scheduling_strategy=strategy).remote(self._needs)
        try:
            self._call("check")
        except TrainerError as error:
            raise PluginError(
                f"{error} - is vime installed there, in the environment that `ray start` was called in?"
            ) from error
        states: list[NodeState] = self._call("start")
        self._names = {
            agent.watch.remote(): name for name, agent in zip(self._labels(), self._agents.values(), strict=True)
        }
        together = {state.loopback for state in states} == {loopback_identity()}
        return {
            node: NodePlace(LOOPBACK if together else state.address, state.keeper, state.memory)
            for node, state in zip(self._agents, states, strict=True)
        }

    def check(self) -> None:
        """Return at once when all nodes are there and their keepers watch; to be asked regularly.

        Raises:
            KeeperError: a keeper has ended, or has been stopped for too long.
            TrainerError: a node, or the agent on it, has gone.
        """
        import ray

        ended, _ = ray.wait(list(self._names), num_returns=len(self._names), timeout=0) if self._names else ([], [])
        for ref in ended:
            gather([ref], [self._names[ref]], what="the run", deadline_s=POLL_S)

    def close(self) -> None:
        """End all keepers in order, and the agents; safe to call twice and after a failed start."""
        import ray

        agents, self._agents, self._names = self._agents, {}, {}
        refs = [agent.close.remote() for agent in agents.values()]
        if refs:
            ray.wait(refs, num_returns=len(refs), timeout=self._needs.stop_deadline_s)
        for agent in agents.values():
            ray.kill(agent, no_restart=True)

    def _call(self, method: str) -> list[Any]:
        refs = [getattr(agent, method).remote() for agent in self._agents.values()]
        return gather(refs, self._labels(), what=f"{method} of the node", deadline_s=self._deadline_s)

    def _labels(self) -> list[str]:
        import ray

        addresses = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
        return [f"node {addresses[node]}" for node in self._agents]


def node_address() -> str:
    """The address at which this node is in the cluster."""
    import ray

    address: str = ray.util.get_node_ip_address()
    return address


def differences(driver: Mapping[str, Any], here: Mapping[str, Any], name: str) -> str:
    """`x: driver 1, <name> 2; ...` for what is not the same in both; empty when all is."""
    different = sorted(key for key in here.keys() | driver.keys() if here.get(key) != driver.get(key))
    return "; ".join(f"{key}: driver {driver.get(key)}, {name} {here.get(key)}" for key in different)


def installed(names: Mapping[str, str]) -> dict[str, str]:
    """Those of the distributions (and `python`) that this process finds, with their versions."""
    found = {}
    for name in names:
        try:
            found[name] = platform.python_version() if name == "python" else metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
