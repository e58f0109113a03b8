"""The standard tests of rollout backends and sync strategies, on one real engine.

The last test leaves its engine in the middle of a push, so the engine is this module's own.
"""

from __future__ import annotations

import asyncio
import json
import urllib.request
from contextlib import contextmanager

import pytest

from vime_core.testing import RolloutBackendSuite, SyncStrategySuite
from vime_core.testing.suites.sync import Engines
from vime_vllm.backend import VllmBackend
from vime_vllm.config import ShmConfig
from vime_vllm.sync.shm import ShmSync


class TestRollout(RolloutBackendSuite):
    """Without engines."""

    entry = "vllm"


class TestSync(SyncStrategySuite):
    """Without engines."""

    entry = "shm"


class TestIpc(SyncStrategySuite):
    """Without engines."""

    entry = "ipc"


class TestNccl(SyncStrategySuite):
    """Without engines."""

    entry = "nccl"


@pytest.fixture(scope="module")
def backend(make_context, make_model, keeper, ray_runtime, tmp_path_factory):
    """One engine with its router."""
    context = make_context(tmp_path_factory.mktemp("logs"), keeper=keeper.address, num_engines=1)
    backend = VllmBackend(context)
    try:
        backend.start()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("VIME_RUN_ID", context.run_id)
            sync = ShmSync(ShmConfig(), rank=0, world_size=1)
        try:
            sync.connect(backend.endpoints())
            asyncio.run(backend.pause())
            sync.push(iter(make_model(0).state_dict().items()), 0)
            asyncio.run(backend.resume())
        finally:
            sync.close()
        yield context, backend
    finally:
        backend.close()


@pytest.mark.engine
@pytest.mark.full
class TestRolloutOnEngines(RolloutBackendSuite):
    entry = "vllm"

    @pytest.fixture(autouse=True)
    def _engines(self, backend):
        self.backend = backend[1]

    @contextmanager
    def running(self):
        yield self.backend


@pytest.mark.engine
@pytest.mark.full
class TestSyncOnEngines(SyncStrategySuite):
    entry = "shm"

    @pytest.fixture(autouse=True)
    def _engines(self, backend, make_model):
        self.backend = backend[1]
        self.make_model = make_model

    @contextmanager
    def engines(self):
        asyncio.run(self.backend.pause())
        yield Engines(self.backend.endpoints(), version=self.version)
        asyncio.run(self.backend.resume())

    def weights(self, seed):
        # Norms of a fresh model are all 1, whatever its seed.
        return [(name, tensor + 0.01 * seed) for name, tensor in self.make_model(seed).state_dict().items()]

    def version(self, endpoint):
        request = urllib.request.Request(endpoint.url + "/weight_info")
        request.add_header("authorization", f"Bearer {endpoint.key}")
        with urllib.request.urlopen(request, timeout=20) as answer:
            return int(json.loads(answer.read())["weight_version"])
