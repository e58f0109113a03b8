"""Owners of processes without vLLM in them: starts that fail, deaths, leftovers."""

from __future__ import annotations

import os
import re
import secrets
import sys
import threading
import time
from multiprocessing import shared_memory
from pathlib import Path

import psutil
import pytest

from vime_core.cluster.guard import GuardedProcess
from vime_core.errors import DeadlineError, EngineError
from vime_core.types import NodePlace
from vime_vllm.actor import EngineActor, EngineSpec
from vime_vllm.leftovers import Leftovers, name_segments
from vime_vllm.logs import cause_in
from vime_vllm.middleware import KEY_VARIABLE
from vime_vllm.ports import free_port
from vime_vllm.sync.segment import FOLDER
from vime_vllm.vitals import LOOK_S, Vitals

FAILS = (
    "import sys; print('(EngineCore pid=7) ERROR 11-29 15:58:07 [core.py:9] ValueError: no such model'); sys.exit(3)"
)
SLEEPS = "import time; print('loading', flush=True); time.sleep(600)"
ANSWERS = """
import sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
HTTPServer(("127.0.0.1", int(sys.argv[2])), Handler).serve_forever()
"""
CORE = "import time; time.sleep(600)"
LOSES_ITS_CORE = f"""
import subprocess, sys
subprocess.run([sys.executable, "-c", "{CORE}"])
print("RuntimeError: the core has gone")
"""
HANGS_WITHOUT_ITS_CORE = LOSES_ITS_CORE + "import time; time.sleep(600)"
HEALTH_S = 2.0


@pytest.fixture
def owner(keeper, tmp_path):
    """Makes the owner of a Python program that stands for a server."""
    made = []

    def make(program):
        name = f"engine-{len(made)}"
        spec = EngineSpec(
            name=name,
            command=[sys.executable, "-c", program],
            environment={KEY_VARIABLE: "secret"},
            log=tmp_path / f"{name}.log",
            run_id=secrets.token_hex(4),
            place=NodePlace(address="127.0.0.1", keeper=keeper.address),
            health_deadline=HEALTH_S,
        )
        made.append(EngineActor(spec))
        return made[-1]

    yield make
    for actor in made:
        actor.stop(5)


def test_a_server_that_ends_while_starting_is_told_with_the_cause_in_its_log(owner):
    with pytest.raises(
        EngineError, match=r"engine-0 ended with exit status 3: ValueError: no such model \(log: .*0.log"
    ):
        owner(FAILS).start(60)


def test_a_server_that_never_answers_is_told_after_the_deadline(owner):
    with pytest.raises(DeadlineError, match=r"engine-0 did not answer within 1 s.*loading.*deadlines.start"):
        owner(SLEEPS).start(1)


def test_an_owner_told_to_stop_does_not_go_on_starting(owner):
    actor = owner(SLEEPS)
    ended = threading.Timer(0.5, actor.stop, [5])
    ended.start()
    with pytest.raises(EngineError, match="ended"):
        actor.start(60)
    ended.join()


def test_a_death_is_told_and_an_orderly_end_is_not(owner):
    dying, stopped = owner(FAILS), owner(ANSWERS)
    with pytest.raises(EngineError):
        dying.start(60)
    assert "ended with exit status 3" in dying.watch()
    watched = []
    watcher = threading.Thread(target=lambda: watched.append(stopped.watch()))
    watcher.start()
    stopped.stop(5)
    watcher.join(30)
    assert watched == [None]


@pytest.fixture
def server(keeper, tmp_path):
    """Starts a Python program under watch: (its process, its vitals, what they say of its end)."""
    started = []

    def start(program, answers=lambda: True):
        log, port = tmp_path / "server.log", str(free_port("127.0.0.1"))
        command = [sys.executable, "-c", program, "--port", port]
        process = GuardedProcess(command, env=dict(os.environ), log=log, keeper=keeper.address)
        vitals = Vitals("the server", process, log, answers, HEALTH_S)
        process.start()
        closing, told = threading.Event(), []
        watcher = threading.Thread(target=lambda: told.append(vitals.watch(closing)))
        watcher.start()
        started.append((process, closing, watcher))

        def end():
            watcher.join(60)
            return told[0]

        return process, end

    yield start
    for process, closing, watcher in started:
        closing.set()
        watcher.join(60)
        process.stop(5)


def _below(process, program):
    """The one process below the guardians that runs a Python program which starts like this."""
    deadline = time.monotonic() + 60
    while True:
        below = psutil.Process(process.pid).children(recursive=True)
        found = [p for p in below if p.cmdline()[1:2] == ["-c"] and p.cmdline()[2].startswith(program)]
        if found:
            return found[0]
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_server_that_was_killed_is_told_by_the_signal(server, tmp_path):
    process, end = server(SLEEPS)
    _below(process, SLEEPS).kill()
    assert end() == f"the server was killed by SIGKILL (log: {tmp_path / 'server.log'})"


def test_a_server_that_goes_down_with_its_core_tells_what_killed_the_core(server):
    process, end = server(LOSES_ITS_CORE)
    core = _below(process, CORE)
    time.sleep(2 * LOOK_S)  # the watcher must have met it
    core.kill()
    assert re.match(r"the server (lost \S+ \(process \d+\), which was killed by SIGKILL|ended with exit)", end())


def test_a_server_that_hangs_without_its_core_tells_what_killed_the_core(server):
    answering = threading.Event()
    answering.set()
    process, end = server(HANGS_WITHOUT_ITS_CORE, answers=answering.is_set)
    core = _below(process, CORE)
    time.sleep(2 * LOOK_S)  # the watcher must have met it
    core.kill()
    answering.clear()
    assert re.match(r"the server (lost \S+ \(process \d+\), which was killed by SIGKILL|stopped answering) ", end())


@pytest.mark.parametrize("which", ["server", "guardian"])
def test_a_stopped_server_is_told_within_the_health_deadline(server, which):
    process, end = server(SLEEPS)
    victim = _below(process, SLEEPS) if which == "server" else psutil.Process(process.pid)
    victim.suspend()
    assert re.match(r"the server stopped answering for 2 s: \S+ \(process \d+\) is stopped \(log: ", end())


def test_a_server_that_runs_and_does_not_answer_is_told_within_the_health_deadline(server):
    asked = []
    _, end = server(SLEEPS, answers=lambda: asked.append(True))
    assert re.match(r"the server stopped answering for 2 s \(log: ", end())
    assert len(asked) > 1


def test_a_health_check_that_fails_once_is_forgiven(server):
    answers = [True, False, True, False]
    _, end = server(SLEEPS, answers=lambda: answers.pop() if answers else False)
    assert end().startswith("the server stopped answering")
    assert answers == []


def test_segments_of_a_server_can_be_found_and_are_deleted(keeper, monkeypatch):
    leftovers = Leftovers("run5", "engine-0", keeper.address)
    leftovers.create()
    for name, value in leftovers.environment.items():
        monkeypatch.setenv(name, value)
    with monkeypatch.context() as patch:
        for name in ("_SHM_NAME_PREFIX", "_SHM_SAFE_NAME_LENGTH"):
            patch.setattr(shared_memory, name, getattr(shared_memory, name))
        name_segments()
        segments = [shared_memory.SharedMemory(create=True, size=10) for _ in range(2)]
    assert len({segment.name for segment in segments}) == 2
    assert all(segment.name.startswith("vime-run5-engine-0-") for segment in segments)
    assert len(list(FOLDER.glob("vime-run5-engine-0-*"))) == 2
    for segment in segments:
        segment.close()
        segment.unlink()
    (FOLDER / "vime-run5-engine-0-killed").touch()
    (FOLDER / "vime-run5-engine-1-alive").touch()
    leftovers.delete()
    leftovers.delete()
    assert [path.name for path in FOLDER.glob("vime-run5-*")] == ["vime-run5-engine-1-alive"]
    (FOLDER / "vime-run5-engine-1-alive").unlink()


def test_segments_that_vllm_names_are_deleted_too(keeper):
    leftovers = Leftovers("run6", "engine-0", keeper.address)
    leftovers.create()
    name = f"vllm_dist_{secrets.token_hex(8)}"
    (Path(leftovers.environment["TMPDIR"]) / name).touch()
    segment = FOLDER / f"{name}-tp:0-[0-1]-cpushm_0"
    segment.touch()
    leftovers.find()
    leftovers.delete()
    assert not segment.exists()


@pytest.mark.parametrize(
    ("tail", "cause"),
    [
        ("", "the log is empty"),
        ("INFO 11-29 15:54:26 [a.py:1] loading\n\n", "loading"),
        ("\x1b[31mValueError: red\x1b[0m\nINFO 11-29 15:54:26 [a.py:1] bye", "ValueError: red"),
        (
            "(EngineCore pid=9) ERROR 11-29 15:58:07 [core.py:1] torch.OutOfMemoryError: 3 GiB\n"
            "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}\n",
            "torch.OutOfMemoryError: 3 GiB",
        ),
        (
            "OSError: [Errno 98] Address already in use\nRaised Error somewhere",
            "OSError: [Errno 98] Address already in use",
        ),
    ],
)
def test_the_cause_in_a_log(tail, cause):
    assert cause_in(tail) == cause
