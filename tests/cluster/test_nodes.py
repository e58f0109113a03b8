"""What every node of a cluster must have, and the keeper that it gets."""

import os
import signal
import subprocess
import sys
import time
import types
from dataclasses import replace

import psutil
import pytest

from vime_core.cluster import nodes
from vime_core.cluster.keeper import KeeperClient
from vime_core.cluster.node_keeper import NodeKeeper
from vime_core.cluster.nodes import NodeAgent, NodeGroup, NodeNeeds
from vime_core.errors import KeeperError, ModelError, PluginError, ResourceError, RunFolderError
from vime_core.models.fingerprint import model_fingerprint
from vime_core.plugins.manager import load_plugins
from vime_core.run.versions import installed_versions
from vime_core.testing.models import write_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("nodes") / "model").path


@pytest.fixture
def needs(model, tmp_path, ray_runtime):
    """What this very process has."""
    logs = tmp_path / "run" / "logs"
    logs.mkdir(parents=True)
    return NodeNeeds(
        run_id="nodes",
        plugins=load_plugins().versions(),
        blocked_plugins=(),
        versions=installed_versions(),
        model_path=model,
        model=model_fingerprint(model),
        log_folder=logs,
        log_file=tmp_path / "run" / "log.txt",
        health_deadline_s=10.0,
        stop_deadline_s=10.0,
    )


@pytest.fixture
def node_keeper(tmp_path):
    keeper = NodeKeeper("nodes", tmp_path, health_deadline_s=1.0, log_file=tmp_path / "log.txt", deadline_s=10.0)
    yield keeper
    keeper.close()


@pytest.fixture
def sleeper():
    process = subprocess.Popen(["sleep", "1000"])
    yield process
    process.kill()
    process.wait()


def test_a_node_like_the_drivers_is_fine(needs):
    NodeAgent(needs).check()


@pytest.mark.parametrize(
    ("change", "error", "told"),
    [
        ({"versions": {"ray": "1.0"}}, PluginError, r"has other versions than the driver: ray: driver 1\.0, node 2\."),
        (
            {"versions": {"nosuch": "1.0"}},
            PluginError,
            r"has other versions than the driver: nosuch: driver 1\.0, node None",
        ),
        ({"plugins": {}}, PluginError, r"sees other plugins than the driver: core: driver None, node \('vime-core'"),
        ({"model": {"config.json": "0"}}, ModelError, r"has another model at .*: config\.json differs; copy it anew"),
    ],
)
def test_a_difference_is_told_with_the_nodes_address(needs, change, error, told):
    with pytest.raises(error, match=rf"^node 127\.0\.0\.1 {told}"):
        NodeAgent(replace(needs, **change)).check()


def test_files_that_are_not_shared_are_told(needs, tmp_path):
    with pytest.raises(
        ModelError, match=rf"^node 127\.0\.0\.1 has no model at {tmp_path}/nosuch: put it there, or on a "
    ):
        NodeAgent(replace(needs, model_path=tmp_path / "nosuch")).check()
    with pytest.raises(
        RunFolderError, match=rf"^node 127\.0\.0\.1 does not see the run folder {tmp_path}/far: put run\."
    ):
        NodeAgent(replace(needs, log_folder=tmp_path / "far" / "logs")).check()


def test_a_ray_that_lets_anyone_in_is_refused(needs, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with pytest.raises(
        PluginError, match=r"^node 127\.0\.0\.1 runs a Ray that lets anyone in: start it with RAY_AUTH_"
    ):
        NodeAgent(needs).check()


def test_plugins_that_the_driver_blocks_are_blocked_on_the_node(needs):
    plugins = {name: plugin for name, plugin in needs.plugins.items() if name != "grpo"}
    NodeAgent(replace(needs, plugins=plugins, blocked_plugins=("grpo",))).check()


def test_a_group_gives_each_node_a_keeper_and_misses_it(needs):
    """One node here; it is the driver's, so that all may listen on loopback."""
    import ray

    node = ray.get_runtime_context().get_node_id()
    group = NodeGroup(needs, deadline_s=120)
    try:
        places = group.start([node, node])
        assert list(places) == [node]
        assert places[node].address == "127.0.0.1"
        KeeperClient(places[node].keeper).ping()
        group.check()
        kill_keeper(places[node].keeper)
        with pytest.raises(KeeperError, match=r"^node 127\.0\.0\.1: the keeper at .* has gone"):
            poll(group.check)
    finally:
        group.close()


def test_a_node_without_vime_is_told(needs, monkeypatch):
    """Workers cannot import this agent's module, as those of such a node cannot import vime's."""
    import ray

    class Agent:
        def __init__(self, needs):
            """Never called, as none of them."""

        def check(self): ...

        def close(self): ...

    Agent.__module__, Agent.__qualname__ = "nosuch_module", "Agent"
    module = types.ModuleType("nosuch_module")
    module.Agent = Agent
    monkeypatch.setitem(sys.modules, "nosuch_module", module)
    monkeypatch.setattr(nodes, "NodeAgent", Agent)
    group = NodeGroup(needs, deadline_s=120)
    try:
        with pytest.raises(
            PluginError, match=r"^node 127\.0\.0\.1 .* - is vime installed there, in the environment that"
        ):
            group.start([ray.get_runtime_context().get_node_id()])
    finally:
        group.close()


def test_a_keeper_cleans_up_when_its_owner_is_killed(node_keeper, sleeper, wait_until):
    """Ray kills the children of an actor that ends: the owner is the keeper's parent."""
    KeeperClient(node_keeper.address).register_process(sleeper.pid)
    os.kill(psutil.Process(keeper_pid(node_keeper.address)).ppid(), signal.SIGKILL)
    wait_until(lambda: sleeper.poll() == -signal.SIGKILL)
    wait_until(lambda: not os.path.exists(os.path.dirname(node_keeper.address)))


def test_a_keeper_that_is_closed_goes(node_keeper):
    node_keeper.check()
    node_keeper.close()
    with pytest.raises(KeeperError, match="has gone"):
        node_keeper.check()


def test_a_keeper_that_cannot_start_says_why(tmp_path):
    with pytest.raises(ResourceError, match=r"^the node's keeper did not start: .*must be letters"):
        NodeKeeper("no/id", tmp_path, health_deadline_s=1.0, log_file=tmp_path / "log.txt", deadline_s=1.0)


def keeper_pid(address):
    home = os.path.dirname(address)
    [found] = [p.pid for p in psutil.process_iter(["cmdline"]) if home in (p.info["cmdline"] or ())]
    return found


def kill_keeper(address):
    os.kill(keeper_pid(address), signal.SIGKILL)


def poll(check, deadline_s=60):
    """Ask until it raises."""
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        check()
        time.sleep(0.1)
