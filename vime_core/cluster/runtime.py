"""Ray on this machine: started for one run, closed to others, and ended with it."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from vime_core.accelerators.network import LOOPBACK_ENVIRONMENT
from vime_core.cluster import processes
from vime_core.cluster.keeper import KeeperClient, register_descendants
from vime_core.cluster.ray_signals import caller_handles_sigterm
from vime_core.cluster.sessions import forked_children_apart

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

LOOPBACK = "127.0.0.1"

QUIET_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_enable_metrics_collection": "0",
}
CLOSED_ENVIRONMENT = {
    "RAY_AUTH_MODE": "token",
    # Told that this system has no clusters, Ray stays on loopback; otherwise it replaces 127.0.0.1 by the host's own
    # address and listens on all.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # The metrics of Ray's autoscaler ask for no token. There is no such port, so they are served nowhere.
    "AUTOSCALER_METRIC_PORT": "65536",
    **LOOPBACK_ENVIRONMENT,
}
"""Closes a Ray that runs on this machine alone. Read by `import ray` and by every process that Ray starts."""


class RayRuntime:
    """A local Ray of this run. Use as a context manager; the driver connects to it on entry.

    Args:
        resources: logical `CPU` and `GPU` counts of this node.
        object_store_bytes: shared memory for objects; Ray wants at least 75 MiB.
        keeper: address of the keeper, which ends Ray's processes should the driver vanish.
        environment: what the accelerator wants Ray, and the driver before it imports Ray, to find.
    """

    def __init__(
        self,
        *,
        resources: dict[str, int],
        object_store_bytes: int,
        keeper: str,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._resources = resources
        self._object_store_bytes = object_store_bytes
        self._keeper = keeper
        self._environment = environment or {}
        self._folder: Path | None = None

    def __enter__(self) -> RayRuntime:
        os.environ.update(QUIET_ENVIRONMENT | CLOSED_ENVIRONMENT | dict(self._environment))
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
        import ray

        # Unix sockets live below this folder, and their paths may have 107 bytes only.
        self._folder = Path(tempfile.mkdtemp(prefix="vime-ray-"))
        client = KeeperClient(self._keeper)
        client.register_path(self._folder)
        others = processes.descendants(os.getpid())
        # Supervisors signal a whole process group, and without Ray the driver could not end its run in order.
        with caller_handles_sigterm(), forked_children_apart():
            try:
                ray.init(
                    address="local",
                    num_cpus=self._resources["CPU"],
                    num_gpus=self._resources["GPU"],
                    object_store_memory=self._object_store_bytes,
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level="error",
                    _node_ip_address=LOOPBACK,
                    # Ray opens its own folder to everyone; no other user gets past the one around it.
                    _temp_dir=str(self._folder / "ray"),
                )
            finally:
                register_descendants(client, os.getpid(), but=others)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        import ray

        ray.shutdown()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
