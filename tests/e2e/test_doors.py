"""A run with two trainer ranks while it trains: what listens, who gets in, and where its keys are."""

import os
import re
import signal
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import defaultdict
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

import psutil
import pytest

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

LISTENING = Path(__file__).parents[2] / "docs" / "reference" / "listening.md"
START_DEADLINE_S = 400
TO_RAY = """
import sys
from ray._raylet import GcsClient
print(len(GcsClient(address=sys.argv[1]).internal_kv_keys(b"", None, timeout=20)), "keys")
"""


@dataclass
class Live:
    """A run in the middle."""

    folder: Path
    tree: list[psutil.Process]
    commands: dict[int, str]
    secrets: dict[str, str]

    def sockets(self, kind):
        """(process, socket) of the whole tree."""
        return [(process, socket) for process in self.tree for socket in process.net_connections(kind)]

    def listening(self):
        """(command line, address, port)"""
        sockets = [(p, s) for p, s in self.sockets("inet") if s.status == psutil.CONN_LISTEN or not s.raddr]
        return [(self.commands[p.pid], _address(s.laddr.ip), s.laddr.port) for p, s in sockets]

    def find(self, pattern):
        """The first group of `pattern` on the one command line that it matches."""
        [found] = {match[1] for command in self.commands.values() if (match := re.search(pattern, command))}
        return found


@pytest.fixture(scope="module")
def live(world):
    folder = world.folder / "live"
    settings = ["train.world_size=2", "rollout.num_engines=1", "train.steps=1000", f"resume.run={folder}"]
    process = world.start(*settings, "resume.mode=auto")
    try:
        _wait_for_a_step(process, folder)
        tree = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        commands = {process.pid: " ".join(process.cmdline()) for process in tree}
        yield Live(folder, tree, commands, _secrets(tree))
    finally:
        os.killpg(process.pid, signal.SIGINT)
        output, _ = process.communicate(timeout=180)
    assert process.returncode == 130, output


def test_nothing_listens_off_loopback(live):
    assert not [socket for socket in live.listening() if not socket[1].is_loopback]


def test_the_reference_lists_what_listens(live):
    rows = re.findall(r"^\| `([^`]+)` \|", LISTENING.read_text(), re.MULTILINE)
    seen = defaultdict(set)
    for command, _, port in live.listening():
        names = [row for row in rows if row in command.split("--")[0]]
        assert names, f"docs/reference/listening.md does not list {command[:200]} (port {port})"
        seen[max(names, key=len)].add(port)
    assert seen.keys() == set(rows)


def test_ray_asks_for_its_token(live, shell_environment):
    address = live.find(r"--gcs-address=(\S+)")

    def reach(**variables):
        command = [sys.executable, "-c", TO_RAY, address]
        return subprocess.run(command, env=shell_environment | variables, capture_output=True, text=True, timeout=120)

    assert "keys" in reach(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=live.secrets["RAY_AUTH_TOKEN"]).stdout
    for variables in ({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}, {"RAY_AUTH_MODE": "disabled"}):
        refused = reach(**variables)
        assert refused.returncode != 0
        assert "keys" not in refused.stdout
        assert "token" in refused.stderr


def test_rays_agent_asks_for_its_token(live):
    [port] = {port for command, _, port in live.listening() if "RuntimeEnvAgent" in command}
    for headers in ({}, {"Authorization": "Bearer " + "0" * 64}):
        request = urllib.request.Request(f"http://127.0.0.1:{port}/get_or_create_runtime_env", b"", headers)
        with pytest.raises(urllib.error.HTTPError) as refusal:
            urllib.request.urlopen(request, timeout=20)
        with refusal.value as answer:
            assert answer.code in (401, 403)


def test_no_key_is_on_a_command_line_or_in_a_file(live):
    private = {Path(live.find(r"--session-dir=(\S+)")), *_vime_folders(live)}
    files = [file for folder in (live.folder, *private) for file in folder.rglob("*") if file.is_file()]
    assert {"config.yaml", "log.txt", "engine-0.log", "router.log", "raylet.out"} <= {file.name for file in files}
    for secret in live.secrets.values():
        assert not [command for command in live.commands.values() if secret in command]
        assert not [file for file in files if secret.encode() in _read(file)]


def test_unix_sockets_are_out_of_reach_of_other_users(live):
    paths = {socket.laddr for _, socket in live.sockets("unix") if socket.laddr}
    assert len(paths) > 5
    for path in paths:
        assert path.startswith("/"), f"{path} is in no folder: anyone may connect"
        assert any(_is_private(folder) for folder in Path(path).parents), path


def test_shared_memory_is_out_of_reach_of_other_users(live):
    maps = {mapped.path for process in live.tree for mapped in process.memory_maps()}
    segments = [Path(path) for path in maps if path.startswith("/dev/shm/") and os.path.exists(path)]
    assert any(segment.name.startswith("vime-") for segment in segments)
    for segment in segments:
        assert not segment.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO), segment


def _wait_for_a_step(process, folder):
    deadline = time.monotonic() + START_DEADLINE_S
    metrics = folder / "metrics.jsonl"
    while not (metrics.exists() and metrics.read_text().count("\n")):
        assert process.poll() is None, process.stdout.read()
        assert time.monotonic() < deadline, "no step"
        time.sleep(0.2)


def _secrets(tree):
    """The two keys, each the same in every process that has it in its environment."""
    found = defaultdict(set)
    for process in tree:
        for name in ("VIME_RUN_KEY", "RAY_AUTH_TOKEN"):
            if value := process.environ().get(name):
                found[name].add(value)
    assert len(found) == 2
    return {name: secret for name, [secret] in found.items()}


def _address(ip):
    """Ray's sockets tell IPv4 addresses as IPv6 ones."""
    return ip_address(ip.removeprefix("::ffff:"))


def _vime_folders(live):
    """Folders outside the run folder that hold the Unix sockets of the run."""
    sockets = {Path(socket.laddr) for _, socket in live.sockets("unix") if socket.laddr.startswith("/")}
    return {parent for path in sockets for parent in path.parents if parent.name.startswith("vime-")}


def _is_private(folder):
    status = folder.stat()
    return status.st_uid == os.getuid() and not status.st_mode & (stat.S_IRWXG | stat.S_IRWXO)


def _read(file):
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return b""
