"""Every part of a run dies, by SIGKILL and by SIGSTOP: what the user reads, how long it takes, what is left.

The runs share a folder: each goes on from the checkpoint that the death before it has left.
"""

import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import psutil
import pytest
from rich.console import Console
from rich.table import Table

from vime_core.run.checkpoint import CheckpointStore
from vime_core.run.metrics import read_metrics

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]

STEP_DEADLINE_S = 300
END_DEADLINE_S = 200
"""Far more than the deadlines below, far less than those of the stages, which would end a run that noticed nothing."""
GONE_DEADLINE_S = 60
HEALTH_S = 6
VERDICT_S = 2
SETTINGS = [
    "reward=[slow]",
    "train.steps=100000",
    "checkpoint.every=1",
    "rollout.num_engines=1",
    f"reward_pool.time_limit_s={VERDICT_S}",
    "reward_pool.max_failure_ratio=0.5",
    f"deadlines.health={HEALTH_S}",
    "deadlines.stop=3",
]
REPLAY_SETTINGS = [
    "rollout=replay",
    "train.steps=300",
    "checkpoint.every=1",
    f"deadlines.health={HEALTH_S}",
    "deadlines.stop=3",
]
"""Without engines a run starts in a quarter of the time."""

SLOW_HOOKS = """
    from vime_core import hookimpl
    from vime_core.plugins.entries import RewardEntry

    from slow_reward.config import SlowConfig


    @hookimpl
    def vime_rewards():
        return [RewardEntry(name="slow", summary="takes its time", config=SlowConfig,
                            factory="slow_reward.reward:Slow")]
"""
SLOW_CONFIG = """
    from dataclasses import dataclass

    from vime_core.config.schema import RewardConfig


    @dataclass(kw_only=True)
    class SlowConfig(RewardConfig):
        busy: str = ""
"""
SLOW_REWARD = """
    import time
    from pathlib import Path

    from vime_core.types import Verdict


    class Slow:
        # While the file `busy` is there: says that it is at work, and takes a moment.
        def __init__(self, config):
            self.busy = Path(config.busy)

        def score(self, sample, prompt):
            if self.busy.exists():
                self.busy.with_suffix(".now").touch()
                end = time.monotonic() + 1.0
                while self.busy.exists() and time.monotonic() < end:
                    time.sleep(0.01)
            small = sum(int(token) < 128 for token in sample.response_ids)
            return Verdict(score=small / len(sample.response_ids), status="correct")
"""
"""A scoring process that is caught at work."""


def by_module(module):
    return lambda command: command[1:3] == ["-m", module]


ACTORS = {
    "driver": lambda command: command[1:4] == ["-m", "vime_core.cli", "train"],
    "trainer rank": lambda command: command[0].startswith("ray::TrainWorker"),
    "engine server": by_module("vime_vllm.server"),
    "engine core": lambda command: command[0].startswith("VLLM::EngineCore"),
    "router": lambda command: "router" in command[0] or command[1:3] == ["-m", "vime_vllm.router_server"],
    "reward worker": by_module("vime_core.rewards.worker"),
    "keeper": by_module("vime_core.cluster.keeper_process"),
    "guardian": lambda command: command[3:4] and command[3].endswith("guardian.py") and "vime_vllm.server" in command,
}


@dataclass(frozen=True)
class Row:
    """One death."""

    actor: str
    signal: str
    told: str
    seconds: float
    status: int | str
    left: str


class Patient:
    """A run whose parts die, one after another; it goes on from its checkpoint when it has ended."""

    def __init__(self, world, folder, settings, rows):
        self.world = world
        self.folder = folder
        self.settings = settings
        self.mark = str(folder.parent)
        """In the environment of all processes of this run, and of no other's."""
        self.busy = folder.parent / "busy"
        self.rows = rows
        self.process = None

    def start(self):
        """Unless it runs; until a step more is done."""
        if self.process is not None:
            return
        mode = "must" if self.folder.exists() else "auto"
        done = self.step()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYTHONPATH", self.mark, prepend=os.pathsep)
            self.process = self.world.start(*self.settings, f"resume.mode={mode}", f"resume.run={self.folder}")
        self.output = Output(self.process)
        self.wait_for_step(done + 1)

    def step(self):
        file = self.folder / "metrics.jsonl"
        rows = read_metrics(file) if file.exists() else []
        return rows[-1]["step"] if rows else 0

    def wait_for_step(self, step):
        """Until `step` is complete, its checkpoint too."""
        self.wait_until(lambda: self.checkpoint() >= step, STEP_DEADLINE_S)

    def checkpoint(self):
        found = CheckpointStore(self.folder / "checkpoints", keep_last=2).latest() if self.folder.exists() else None
        return found.state["step"] if found else 0

    def wait_until(self, condition, deadline_s):
        end = time.monotonic() + deadline_s
        while not condition():
            assert self.process.poll() is None, f"the run ended with {self.process.returncode}:\n{self.output.text()}"
            assert time.monotonic() < end, self.output.text()
            time.sleep(0.05)

    def find(self, actor):
        """The process of an actor; of a pair of guardians the outer one."""
        found = [p for p in self.tree() if ACTORS[actor](cmdline(p))]
        return min(found, key=lambda p: p.create_time())

    def tree(self):
        root = psutil.Process(self.process.pid)
        return [root, *root.children(recursive=True)]

    def dies(self, actor, signals, told, status=1):
        """The run ends, and says why."""
        self.start()
        remains = Remains(self.tree(), self.mark)
        victim = self.find(actor)
        begin = time.monotonic()
        for signum in signals:
            victim.send_signal(signum)
        returncode = self.wait()
        left = remains.left()
        seconds = time.monotonic() - begin
        self.process = None
        self.add(actor, signals, self.output.error() or "(nothing)", seconds, returncode, left)
        assert re.search(told, self.output.error()), self.output.text()
        assert returncode == status
        assert self.checkpoint() >= max(1, self.step() - 1)

    def replaces_worker(self, signum, told, verdict):
        """The run goes on without the scoring process that was at work, and says so in its log."""
        self.start()
        marker, log = self.busy.with_suffix(".now"), self.folder / "log.txt"
        self.busy.touch()
        self.wait_until(marker.exists, STEP_DEADLINE_S)
        victim, before, begin = self.find("reward worker"), len(log.read_text()), time.monotonic()
        victim.send_signal(signum)
        self.busy.unlink()
        marker.unlink()
        self.wait_until(lambda: re.search(told, log.read_text()[before:]), END_DEADLINE_S)
        seconds = time.monotonic() - begin
        line = re.search(f".*({told}.*)", log.read_text()[before:])[1]
        self.wait_for_step(self.step() + 2)
        left = "nothing" if not victim.is_running() else f"process {victim.pid}"
        self.add("reward worker", [signum], line, seconds, "goes on", left)
        assert self.find("reward worker").pid != victim.pid
        assert any(row[f"rollout/verdict_{verdict}"] > 0 for row in read_metrics(self.folder / "metrics.jsonl"))

    def pauses(self):
        """The driver is stopped for longer than any health check waits; nothing happens, and then all goes on."""
        self.start()
        driver, begin = psutil.Process(self.process.pid), time.monotonic()
        driver.suspend()
        self.wait_until(lambda: driver.status() == psutil.STATUS_STOPPED, STEP_DEADLINE_S)
        done = self.step()
        self.wait_until(lambda: time.monotonic() > begin + 2 * HEALTH_S, END_DEADLINE_S)
        assert self.step() == done
        driver.resume()
        self.wait_for_step(done + 2)
        signals = [signal.SIGSTOP, signal.SIGCONT]
        self.add("driver", signals, "(nothing)", time.monotonic() - begin, "goes on", "nothing")

    def add(self, actor, signals, told, seconds, status, left):
        told = told.replace(str(self.folder), "<run>")
        self.rows.append(Row(actor, ", ".join(s.name for s in signals), told, round(seconds, 1), status, left))

    def wait(self):
        try:
            return self.process.wait(END_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.end()
            raise AssertionError(f"nobody noticed:\n{self.output.text()}") from None

    def end(self):
        process, self.process = self.process, None
        if process is not None:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
                process.wait(END_DEADLINE_S)
            self.output.text()


class Output:
    """What a run has printed, once it has ended."""

    def __init__(self, process):
        self.process = process
        self.lines = []

    def text(self):
        if self.process.poll() is not None and not self.process.stdout.closed:
            self.lines += self.process.stdout.read().splitlines()
            self.process.stdout.close()
        return "\n".join(self.lines)

    def error(self):
        """The line for the user; nothing else may follow it."""
        last = self.text().splitlines()[-1]
        return last if last.startswith("error: ") else ""


class Remains:
    """What a run holds, to see later what is left of it."""

    def __init__(self, tree, mark):
        self.tree = tree
        self.mark = mark
        self.ports = {c.laddr.port for p in tree for c in listening(p)}
        self.segments = {path for p in tree for path in shared_memory(p)}
        [run] = {word for p in tree if ACTORS["keeper"](cmdline(p)) for word in cmdline(p)[3:4]}
        self.run = run
        assert self.ports

    def left(self):
        """What is left, in words."""
        end = time.monotonic() + GONE_DEADLINE_S
        while (left := self.now()) and time.monotonic() < end:
            time.sleep(0.1)
        return ", ".join(left) or "nothing"

    def now(self):
        ours = [p for p in psutil.process_iter() if self.is_ours(p)]
        # Somebody else on the machine may listen by now where the run did; None is nobody that can be seen.
        owners = {None, *(p.pid for p in ours)}
        listeners = [c for c in psutil.net_connections("inet") if c.status == psutil.CONN_LISTEN]
        return [
            *(f"process {' '.join(cmdline(p))[:60]}" for p in ours),
            *(f"port {port}" for port in self.ports & {c.laddr.port for c in listeners if c.pid in owners}),
            *(str(path) for path in self.segments if path.exists()),
            *(str(path) for path in Path("/dev/shm").glob(f"vime-{self.run}-*")),
            *(str(path) for path in Path("/tmp").glob(f"vime-{self.run}-*")),
        ]

    def is_ours(self, process):
        try:
            known = process in self.tree and process.status() != psutil.STATUS_ZOMBIE
            return known or self.mark in process.environ().get("PYTHONPATH", "").split(os.pathsep)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            return False


def cmdline(process):
    try:
        return process.cmdline() or [""]
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return [""]


def listening(process):
    try:
        return [c for c in process.net_connections("inet") if c.status == psutil.CONN_LISTEN]
    except psutil.NoSuchProcess:
        return []


def shared_memory(process):
    try:
        paths = {Path(mapped.path) for mapped in process.memory_maps()}
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return set()
    return {path for path in paths if path.is_relative_to("/dev/shm") and path.exists()}


def print_table(rows):
    table = Table(title="what happens when something dies")
    for field in fields(Row):
        table.add_column(field.name, overflow="fold")
    for row in rows:
        table.add_row(*map(str, astuple(row)))
    Console(width=150, file=sys.stdout).print(table)


@pytest.fixture(scope="module")
def slow_world(world):
    world.site.install(
        "acme-slow-reward",
        {"slow": "slow_reward.hooks"},
        {
            "slow_reward/hooks.py": SLOW_HOOKS,
            "slow_reward/config.py": SLOW_CONFIG,
            "slow_reward/reward.py": SLOW_REWARD,
        },
    )
    return world


@pytest.fixture(scope="module")
def rows():
    """What happened."""
    return []


@pytest.fixture(scope="module")
def live(slow_world, tmp_path_factory, rows):
    """A run with engines."""
    folder = tmp_path_factory.mktemp("live")
    patient = Patient(slow_world, folder / "run", [*SETTINGS, f"rewards.slow.busy={folder / 'busy'}"], rows)
    yield patient
    patient.end()


@pytest.fixture(scope="module")
def replay(slow_world, tmp_path_factory, rows, long_recording):
    """A run without engines."""
    folder = tmp_path_factory.mktemp("replay") / "run"
    patient = Patient(slow_world, folder, [*REPLAY_SETTINGS, f"rollout.path={long_recording}"], rows)
    yield patient
    patient.end()


full = pytest.mark.full
KILL, STOP = [signal.SIGKILL], [signal.SIGSTOP]
KILLED = r"was killed by SIGKILL"
STOPPED = rf"stopped answering for {HEALTH_S} s: \S+ \(process \d+\) is stopped"
NOTHING = r"^$"
"""A driver that was killed prints nothing."""


@full
def test_a_run_whose_driver_was_stopped_goes_on(live):
    live.pauses()


@pytest.mark.parametrize(
    ("signum", "told", "verdict"),
    [
        (signal.SIGKILL, rf"scoring process \d+ {KILLED}", "error"),
        pytest.param(
            signal.SIGSTOP,
            rf"scoring process \d+ was killed: no verdict within \S+={VERDICT_S}",
            "timeout",
            marks=full,
        ),
    ],
)
def test_a_run_goes_on_without_a_scoring_process(live, signum, told, verdict):
    live.replaces_worker(signum, told, verdict)


@pytest.mark.parametrize(
    ("actor", "signals", "told"),
    [
        ("engine core", KILL, rf"engine-0 lost VLLM::EngineCore \(process \d+\), which {KILLED}"),
        pytest.param("engine core", STOP, rf"engine-0 {STOPPED}", marks=full),
        pytest.param("engine server", KILL, rf"engine-0 {KILLED}", marks=full),
        ("engine server", STOP, rf"engine-0 {STOPPED}"),
        pytest.param("guardian", KILL, rf"engine-0 lost its guardian, which {KILLED}", marks=full),
        pytest.param("guardian", STOP, rf"engine-0 {STOPPED}", marks=full),
        pytest.param("router", KILL, rf"the router {KILLED}", marks=full),
        pytest.param("router", STOP, rf"the router {STOPPED}", marks=full),
        pytest.param("trainer rank", KILL, rf"trainer rank 0 {KILLED}", marks=full),
    ],
)
def test_a_run_with_engines_tells_who_died(live, actor, signals, told):
    live.dies(actor, signals, told)


@pytest.mark.parametrize(
    ("actor", "signals", "told", "status"),
    [
        ("trainer rank", KILL, rf"trainer rank 0 {KILLED}", 1),
        pytest.param("trainer rank", STOP, rf"trainer rank 0 {STOPPED}", 1, marks=full),
        pytest.param("keeper", KILL, rf"the keeper {KILLED}", 1, marks=full),
        pytest.param("keeper", STOP, rf"the keeper {STOPPED}", 1, marks=full),
        pytest.param("driver", KILL, NOTHING, -signal.SIGKILL, marks=full),
        pytest.param("driver", [*STOP, *KILL], NOTHING, -signal.SIGKILL, marks=full),
    ],
)
def test_a_run_without_engines_tells_who_died(replay, actor, signals, told, status):
    replay.dies(actor, signals, told, status)


def test_the_table(rows, capsys):
    """Of all the deaths above."""
    with capsys.disabled():
        print_table(rows)
    assert rows, "to be run with the deaths above"
    assert {row.left for row in rows} == {"nothing"}
