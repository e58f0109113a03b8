"""Runs that join a Ray cluster: two raylets on this machine, started as docs/how-to/cluster.md says."""

import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from vime_core.cluster.guard import GuardedProcess
from vime_core.run.metrics import read_metrics
from vime_core.testing.distributions import FakeSite

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

START_DEADLINE_S = 120
GONE_DEADLINE_S = 60
APART = ("placement=disjoint", "cluster.train_resource=trainer", "cluster.rollout_resource=engines")

PROBE = """
import json, sys, ray
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="error")
print(json.dumps({"nodes": sum(node["Alive"] for node in ray.nodes()), "total": ray.cluster_resources(),
                  "free": ray.available_resources()}))
"""


class RayCluster:
    """Nodes as users start them, each under a guardian; what this process runs is no part of it."""

    def __init__(self, world, keeper):
        self.world, self.keeper = world, keeper
        self.folder = Path(tempfile.mkdtemp(prefix="ray-"))  # short: Ray puts Unix sockets below it
        self.token_file = self.folder / "token"
        self.token_file.write_text(secrets.token_hex(32))
        self.nodes = {}
        self.own = set()
        self.address = None

    def environment(self, site=None, **more):
        """Of a shell of the user's, who gave Ray its token."""
        closed = {"RAY_AUTH_TOKEN_PATH": str(self.token_file), "RAY_USAGE_STATS_ENABLED": "0"}
        packages = str((site or self.world.site).folder)
        return {**self.world.shell_environment, **closed, "PYTHONPATH": packages, **more}

    def start_node(self, name, *arguments, site=None, before=(), marks=()):
        """`ray start` in the foreground."""
        command = [*before, Path(sys.executable).parent / "ray", "start", "--block", "--num-cpus=2", "--num-gpus=0"]
        command += ["--object-store-memory=100000000", f"--temp-dir={self.folder / name}", "--disable-usage-stats"]
        command += [f"--resources={json.dumps(dict.fromkeys((name, *marks), 1))}", *arguments]
        log = self.folder / f"{name}.log"
        environment = self.environment(site, RAY_AUTH_MODE="token", RAY_enable_metrics_collection="0")
        node = GuardedProcess([str(part) for part in command], env=environment, log=log, keeper=self.keeper)
        node.start()
        self.nodes[name] = node
        wait_until(lambda: self._is_up(node), START_DEADLINE_S, node.log_tail)
        self.own.update(psutil.Process(node.pid).children(recursive=True))
        return node

    def start_head(self, name):
        node = self.start_node(name, "--head", "--port=0", "--include-dashboard=false", marks=["linked"])
        self.address = re.search(r"--address='([\d.:]+)'", node.log_tail(60))[1]

    def join(self, name, *arguments, **options):
        return self.start_node(name, f"--address={self.address}", *arguments, **options)

    def leave(self, name):
        self.nodes.pop(name).stop(1)

    def close(self):
        for name in reversed(list(self.nodes)):
            self.leave(name)
        shutil.rmtree(self.folder)

    def state(self):
        command = [sys.executable, "-c", PROBE, self.address]
        environment = self.environment(RAY_AUTH_MODE="token")
        return json.loads(
            subprocess.run(command, env=environment, stdout=subprocess.PIPE, timeout=120, check=True).stdout
        )

    def foreign(self):
        """Processes on the nodes that Ray did not start for itself: pid -> command."""
        found = {}
        for node in self.nodes.values():
            for process in psutil.Process(node.pid).children(recursive=True):
                command = command_of(process)
                if command and process not in self.own and not is_rays(command):
                    found[process.pid] = command
        return found

    @staticmethod
    def _is_up(node):
        assert node.poll() is None, node.log_tail()
        return "Ray runtime started" in node.log_tail(60)


def command_of(process):
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def is_rays(command):
    return command.startswith("ray::IDLE") or "/ray/" in command or "/bin/ray start" in command


def wait_until(condition, deadline_s, explain=str):
    deadline = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < deadline, explain()
        time.sleep(0.1)


@pytest.fixture(scope="module")
def nodes(world, keeper):
    """A node for the trainer, which is the head, and one for engines."""
    cluster = RayCluster(world, keeper.address)
    try:
        cluster.start_head("trainer")
        cluster.join("engines")
        yield cluster
    finally:
        cluster.close()


@pytest.fixture(scope="module")
def train(world, nodes):
    """Start a run on the cluster."""

    def start(*overrides, **more):
        settings = (f"cluster.address={nodes.address}", *overrides)
        return world.launch(world.command(*settings), env=nodes.environment(**more))

    return start


@pytest.fixture(scope="module")
def finished(world, train):
    return world.finish(train("train.steps=2", *APART))


def test_a_run_over_two_nodes_trains(finished):
    assert finished.status == 0, finished.output
    assert [row["step"] for row in finished.metrics] == [1, 2]
    assert max(row["train/train_rollout_logprob_abs_diff"] for row in finished.metrics) < 1e-4
    assert [row["sync/policy_version"] for row in finished.metrics] == [1, 2]
    assert finished.output.count("probe: trainer and 1 engines agree") == 2
    assert "(raylet)" not in finished.output


def test_trainer_and_engine_were_on_different_nodes(finished):
    """They may still listen on loopback: both nodes are one machine."""
    told = dict(re.findall(r"(trainer rank 0|engine-0).*?on node (\w+), at 127\.0\.0\.1", log_of(finished)))
    assert len(set(told.values())) == 2, log_of(finished)


def test_the_cluster_goes_on_and_keeps_nothing_of_the_run(finished, nodes):
    wait_until(lambda: not nodes.foreign(), GONE_DEADLINE_S, nodes.foreign)
    state = nodes.state()
    assert state["nodes"] == 2
    assert state["free"]["CPU"] == state["total"]["CPU"] == 4


@pytest.mark.full
def test_a_killed_driver_leaves_nothing_on_any_node(nodes, train, world):
    process = train("train.steps=1000", *APART)
    folder = started_folder(process)
    wait_until(lambda: metrics_of(folder), 400, lambda: f"no step: {log_of(folder)}")
    started = nodes.foreign()
    for what in ("TrainWorker", "EngineActor", "vime_vllm.server", "keeper_process"):
        assert any(what in command for command in started.values()), (what, started)
    own = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    wait_until(lambda: not nodes.foreign(), GONE_DEADLINE_S, nodes.foreign)
    _, alive = psutil.wait_procs(own, timeout=GONE_DEADLINE_S)
    assert not alive
    run_id = re.search(r"vime-(\w{8})", " ".join(started.values()))[1]
    wait_until(lambda: not left_files(run_id), GONE_DEADLINE_S, lambda: left_files(run_id))
    state = nodes.state()
    assert (state["nodes"], state["free"]["CPU"]) == (2, 4)


def test_a_node_with_another_version_of_a_plugin_is_refused(nodes, train, world, tmp_path):
    other = FakeSite(tmp_path / "site")
    other.install("acme-echo-reward", {"echo": "echo_reward.hooks"}, {}, version="9.9")
    shutil.copytree(world.site.folder / "echo_reward", other.folder / "echo_reward")
    nodes.join("odd", site=other)
    try:
        refused = world.finish(train("placement=disjoint", "cluster.rollout_resource=odd"))
    finally:
        nodes.leave("odd")
    assert refused.status == 2, refused.output
    told = r"error: node [\d.]+ sees other plugins than the driver: echo: driver \('acme-echo-reward', '1\.0'\), "
    assert re.search(told + r"node \('acme-echo-reward', '9\.9'\)\n", refused.output), refused.output


def test_too_few_devices_of_a_kind_of_node_are_told(train, world):
    refused = world.finish(train("rollout.num_engines=3", *APART))
    assert refused.status == 2, refused.output
    assert (
        "the run needs 3 CPU (train.world_size=1, rollout.num_engines=3) and nodes with the resource engines have 2"
        in (refused.output)
    )


@pytest.mark.full
def test_a_node_that_is_lost_ends_the_run_and_keeps_nothing(nodes, train):
    """Its raylet is killed: what the run had there ends too, and the driver says what was lost."""
    node = nodes.join("doomed")
    try:
        process = train("placement=disjoint", "cluster.rollout_resource=doomed", "train.steps=1000")
        folder = started_folder(process)
        wait_until(lambda: metrics_of(folder), 400, lambda: f"no step: {log_of(folder)}")
        [raylet] = [p for p in psutil.Process(node.pid).children(recursive=True) if "/raylet/raylet" in command_of(p)]
        raylet.kill()
        output, _ = process.communicate(timeout=240)
        assert process.returncode == 1, output
        assert re.search(r"error: (the owner of engine-0 died|engine-0 |node [\d.]+ )", output), output
        wait_until(lambda: not nodes.foreign(), GONE_DEADLINE_S, nodes.foreign)
    finally:
        nodes.leave("doomed")


@pytest.fixture
def far_host(nodes):
    """A node with an address, a loopback and shared memory of its own, as on another machine."""
    name, near, far = f"vime{os.getpid()}", "10.213.7.1", "10.213.7.2"
    net = ("ip", "-netns", name)
    commands = [
        ("ip", "netns", "add", name),
        ("ip", "link", "add", f"v{os.getpid()}", "type", "veth", "peer", "name", "far", "netns", name),
        ("ip", "address", "add", f"{near}/24", "dev", f"v{os.getpid()}"),
        ("ip", "link", "set", f"v{os.getpid()}", "up"),
        (*net, "address", "add", f"{far}/24", "dev", "far"),
        (*net, "link", "set", "far", "up"),
        (*net, "link", "set", "lo", "up"),
        (*net, "route", "add", "default", "via", near),
    ]
    memory = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs tmpfs /dev/shm && exec "$@"', "sh")
    try:
        for command in commands:
            if not shutil.which(command[0]) or subprocess.run(command, capture_output=True).returncode:
                pytest.skip(f"this user may not: {' '.join(command)}")
        nodes.join("far", f"--node-ip-address={far}", before=("ip", "netns", "exec", name, *memory), marks=["linked"])
        yield far
    finally:
        if "far" in nodes.nodes:
            nodes.leave("far")
        subprocess.run(("ip", "netns", "delete", name), capture_output=True)


@pytest.mark.full
def test_shared_memory_between_two_hosts_is_refused_before_engines_start(nodes, train, world, far_host):
    apart = ("placement=disjoint", "cluster.train_resource=trainer", "cluster.rollout_resource=far")
    refused = world.finish(train(*apart, "train.steps=2"))
    assert refused.status == 2, refused.output
    told = (
        r"error: sync=shm moves weights through the memory of one host, and engine-0, on the node at "
        rf"{far_host}, would be on another than trainer rank 0, at [\d.]+ .*: place both on one host, or choose a sync"
    )
    assert re.search(told, refused.output)
    assert not (refused.folder / "logs" / "engine-0.log").exists()
    assert not metrics_of(refused.folder)
    told = dict(re.findall(r"(trainer rank 0|engine-0): on node \w+, at ([\d.]+)", log_of(refused)))
    assert told["engine-0"] == far_host
    assert told["trainer rank 0"] not in (far_host, "127.0.0.1")


@pytest.mark.full
def test_a_driver_trains_on_another_host(train, world, far_host):
    far = ("placement=disjoint", "cluster.train_resource=far", "cluster.rollout_resource=far")
    run = world.finish(train(*far, "train.steps=2"))
    assert run.status == 0, run.output
    assert max(row["train/train_rollout_logprob_abs_diff"] for row in run.metrics) < 1e-4
    assert set(re.findall(r"(?:trainer rank |engine-)\d: on node \w+, at ([\d.]+)", log_of(run))) == {far_host}


@pytest.mark.full
def test_ranks_on_two_hosts_train_together(train, world, far_host, recording):
    """Three ranks on nodes of two devices: on both hosts. They meet at the nodes' addresses, by gloo too."""
    settings = ("rollout=replay", f"rollout.path={recording}", "placement=disjoint", "cluster.train_resource=linked")
    run = world.finish(train(*settings, "train.world_size=3", "train.steps=2"))
    assert run.status == 0, run.output
    told = re.findall(r"trainer rank \d: on node \w+, at ([\d.]+)", log_of(run))
    assert len(told) == 3
    assert set(told) > {far_host}
    assert [row["step"] for row in run.metrics] == [1, 2]
    assert all(row["train/grad_norm"] > 0 for row in run.metrics)


def started_folder(process):
    for line in process.stdout:
        if line.startswith("run folder: "):
            return Path(line.removeprefix("run folder: ").strip())
    raise AssertionError(f"the run ended with {process.wait()}")


def metrics_of(folder):
    file = folder / "metrics.jsonl"
    return read_metrics(file) if file.exists() else []


def log_of(run):
    return (getattr(run, "folder", run) / "log.txt").read_text()


def left_files(run_id):
    return [*Path("/dev/shm").glob(f"vime-{run_id}-*"), *Path(tempfile.gettempdir()).glob(f"vime-{run_id}*")]
