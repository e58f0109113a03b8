"""Real process trees, and waiting for their end."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from vime_core.cluster import processes

TREE = textwrap.dedent("""
    import json, os, signal, subprocess, sys, time

    def sleeper(**options):
        code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"
        child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, **options)
        child.stdout.readline()
        return child.pid

    def daemon():
        readable, writable = os.pipe()
        if os.fork() == 0:
            os.setsid()
            os.write(writable, str(sleeper(start_new_session=True)).encode())
            os._exit(0)
        os.wait()
        return int(os.read(readable, 64))

    pids = {"root": os.getpid(), "plain": sleeper(), "stopped": sleeper(), "daemon": daemon()}
    os.kill(pids["stopped"], signal.SIGSTOP)
    with open(sys.argv[1] + ".tmp", "w") as file:
        json.dump(pids, file)
    os.rename(sys.argv[1] + ".tmp", sys.argv[1])
    time.sleep(600)
""")
"""Writes the pids of its tree as JSON: a plain child, a stopped one, an orphan in a session of its own."""


def _wait_until(condition, deadline_s=60):
    """Poll until `condition()` is true and return its value; fails the test past the deadline."""
    deadline = time.monotonic() + deadline_s
    while not (value := condition()):
        assert time.monotonic() < deadline, "condition did not come true in time"
        time.sleep(0.01)
    return value


class Tree:
    """A process tree that writes its pids to `path`."""

    def __init__(self, path):
        self.path = path
        self.command = [sys.executable, "-c", TREE, str(path)]
        self.members = {}

    def started(self):
        """Wait for the tree and remember its members."""
        _wait_until(self.path.exists)
        for name, pid in json.loads(self.path.read_text()).items():
            self.members[name] = processes.identify(pid)
        assert all(self.members.values())
        return self

    def alive(self):
        return {name for name, process in self.members.items() if processes.is_alive(process)}

    def stop_root(self):
        """SIGSTOP, and wait until it has been obeyed."""
        root = self.members["root"]
        processes.send(root, signal.SIGSTOP)
        _wait_until(lambda: "State:\tT" in Path(f"/proc/{root.pid}/status").read_text())

    def ended(self):
        _wait_until(lambda: not self.alive())


@pytest.fixture
def wait_until():
    return _wait_until


@pytest.fixture
def tree(tmp_path):
    tree = Tree(tmp_path / "pids.json")
    yield tree
    for process in tree.members.values():
        processes.send(process, signal.SIGKILL)


@pytest.fixture
def run_script(tmp_path):
    """Start Python code in a session of its own, `sys.argv[1:]` as given; it is killed at the end of the test."""
    started = []

    def run(code, *arguments):
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
            stdout=subprocess.PIPE,
            stdin=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONWARNINGS": "ignore::ResourceWarning"},
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stdin.close()
