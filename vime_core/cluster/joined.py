"""A Ray cluster of the user's, joined for one run and left as it was."""

from __future__ import annotations

import contextlib
import os
import platform
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vime_core.cluster.calls import first_line
from vime_core.cluster.ray_signals import caller_handles_sigterm
from vime_core.errors import ConfigError, PluginError, ResourceError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType

CONNECT_DEADLINE_S = 5.0
TOKEN_FILE = Path("~/.ray/auth_token")
ENVIRONMENT = {
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""Of the driver; read by `import ray`."""
TOKEN_HINT = "set RAY_AUTH_TOKEN, or RAY_AUTH_TOKEN_PATH to a file with it"


class JoinedRay:
    """The driver's connection to a running cluster. Use as a context manager.

    On leaving, Ray ends the run's actors and placement groups; the cluster and its other jobs go on.

    Args:
        address: `host:port` of the cluster's head node, as `ray start --head` prints it.
        environment: what the accelerator wants the driver to find before it imports Ray.
    """

    def __init__(self, address: str, environment: Mapping[str, str] | None = None) -> None:
        self._address = address
        self._environment = environment or {}

    def __enter__(self) -> JoinedRay:
        """Connect.

        Raises:
            ConfigError: when no cluster is at the address.
            ResourceError: when the token is missing or wrong, or this machine is no node of the cluster.
            PluginError: when the cluster runs another Ray or Python.
        """
        check_reachable(self._address)
        os.environ.update({**ENVIRONMENT, **self._environment})
        check_token(self._address)
        import ray

        check_head(self._address)
        try:
            with caller_handles_sigterm():
                ray.init(address=self._address, log_to_driver=False, logging_level="error")
        except (ConnectionError, RuntimeError) as error:
            raise ResourceError(
                f"cluster.address={self._address} cannot be joined from this machine: {first_line(error)}; run vime on "
                f"a node of the cluster (ray start --address={self._address})"
            ) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        import ray

        ray.shutdown()


@contextlib.contextmanager
def _silent_stderr() -> Iterator[None]:
    """Ray's C++ half prints to it what is told in one line; until `ray.init`, no setting keeps it from doing so."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def check_reachable(address: str) -> None:
    """Check that something listens there, which Ray itself would wait minutes for.

    Raises:
        ConfigError: when the address is malformed or nothing answers.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or "/" in host:
        raise ConfigError(
            f"cluster.address={address} must be host:port of the head node, as `ray start --head` prints it"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_DEADLINE_S).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"cluster.address={address}: no cluster answers there ({error}); is `ray start --head` running, with this "
            "--port?"
        ) from error


def check_token(address: str) -> None:
    """Check that there is a token to show.

    Raises:
        ResourceError: when there is none.
    """
    file = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or TOKEN_FILE).expanduser()
    if not os.environ.get("RAY_AUTH_TOKEN") and not file.is_file():
        raise ResourceError(
            f"cluster.address={address} asks for the cluster's token and there is none: {TOKEN_HINT} "
            f"({TOKEN_FILE} otherwise)"
        )


def check_head(address: str) -> None:
    """Check that a Ray of the same version is there and takes the token.

    Raises:
        ConfigError: when it is no Ray.
        ResourceError: when it refuses the token.
        PluginError: when its Ray or Python is another version.
    """
    import ray
    from ray._common.usage.usage_lib import get_cluster_metadata
    from ray._raylet import GcsClient  # type: ignore[attr-defined] # its stub lacks it

    try:
        with _silent_stderr():
            client = GcsClient(address=address)
        metadata: dict[str, Any] = get_cluster_metadata(client) or {}
    except ray.exceptions.AuthenticationError as error:
        raise ResourceError(f"cluster.address={address} refuses the token: {TOKEN_HINT} that its nodes have") from error
    except ray.exceptions.RpcError as error:
        raise ConfigError(
            f"cluster.address={address}: what answers there is no Ray head node ({first_line(error)}); give the port "
            "that `ray start --head` prints"
        ) from error
    here = {"ray": ray.__version__, "python": platform.python_version()}
    there = {"ray": metadata.get("ray_version"), "python": metadata.get("python_version")}
    if told := [f"{name}: here {here[name]}, there {there[name]}" for name in here if here[name] != there[name]]:
        raise PluginError(
            f"cluster.address={address} runs other versions: {'; '.join(told)}; use the same environment on all nodes"
        )
