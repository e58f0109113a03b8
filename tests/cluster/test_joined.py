"""What stops a run before it joins a cluster, each told in one line."""

import os
import shutil
import socket
import subprocess
import sys

import pytest

from vime_core.cluster.joined import check_reachable, check_token
from vime_core.errors import ConfigError, ResourceError

CHECK = """
import sys
from vime_core.cluster.joined import check_head
from vime_core.errors import VimeError
if len(sys.argv) > 2:
    import ray
    ray.__version__ = sys.argv[2]
try:
    check_head(sys.argv[1])
except VimeError as error:
    print(type(error).__name__, error, sep=": ")
else:
    print("fine")
"""
JOIN = """
import sys
from vime_core.cluster.joined import JoinedRay
from vime_core.errors import VimeError
try:
    with JoinedRay(sys.argv[1]):
        print("joined")
except VimeError as error:
    print(type(error).__name__, error, sep=": ")
"""


@pytest.fixture
def address(ray_runtime):
    """Of the head of this session's Ray."""
    import ray

    return ray.get_runtime_context().gcs_address


def told(code, *arguments, before=(), **environment):
    command = [*before, sys.executable, "-c", code, *arguments]
    env = {**os.environ, **environment}
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=240)
    return done.stdout


@pytest.mark.parametrize("address", ["auto", "10.0.0.1", "ray://10.0.0.1:6379", "head:port", ":6379"])
def test_a_malformed_address_is_refused(address):
    with pytest.raises(ConfigError, match=f"^cluster.address={address} must be host:port of the head node"):
        check_reachable(address)


def test_an_address_where_nothing_listens_is_refused_at_once():
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        with pytest.raises(ConfigError, match=rf"^cluster.address={address}: no cluster answers there \(.*refused\)"):
            check_reachable(address)


def test_a_token_may_come_from_three_places(monkeypatch, tmp_path):
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ResourceError, match=r"asks for the cluster's token and there is none: set RAY_AUTH_TOKEN, or"):
        check_token("10.0.0.1:6379")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    with pytest.raises(ResourceError, match="there is none"):
        check_token("10.0.0.1:6379")
    (tmp_path / "token").write_text("t")
    check_token("10.0.0.1:6379")
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH")
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("t")
    check_token("10.0.0.1:6379")
    monkeypatch.setenv("HOME", str(tmp_path / "nobody"))
    monkeypatch.setenv("RAY_AUTH_TOKEN", "t")
    check_token("10.0.0.1:6379")


def test_a_wrong_token_is_told_at_once(address):
    line = told(CHECK, address, RAY_AUTH_TOKEN="wrong" * 10)
    assert line.startswith(f"ResourceError: cluster.address={address} refuses the token: set RAY_AUTH_TOKEN, or"), line
    assert line.count("\n") == 1, line


def test_another_version_is_told(address):
    assert told(CHECK, address) == "fine\n"
    line = told(CHECK, address, "2.1.0")
    assert line.startswith(f"PluginError: cluster.address={address} runs other versions: ray: here 2.1.0, there "), line
    assert line.count("\n") == 1, line


def test_a_machine_outside_the_cluster_is_told(address):
    """A process namespace of its own, in which no raylet runs, is as good as another machine."""
    outside = ("unshare", "--pid", "--fork", "--mount-proc")
    if not shutil.which("unshare") or subprocess.run([*outside, "true"], capture_output=True).returncode:
        pytest.skip("this user may not make a process namespace")
    line = told(JOIN, address, before=outside, RAY_gcs_server_request_timeout_seconds="3")
    assert line.startswith(f"ResourceError: cluster.address={address} cannot be joined from this machine: "), line
    assert line.endswith(f"; run vime on a node of the cluster (ray start --address={address})\n"), line
    assert line.count("\n") == 1, line
