"""The standard tests of rollout backends and sync strategies, on one real engine.

They run before `test_vllm_engines.py`, whose tests break engines on purpose, and start an engine of their own.
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


class TestRollout(RolloutBackendSuite):
    """Without engines."""

    entry = "vllm"


class TestSync(SyncStrategySuite):
    """Without engines."""

    entry = "shm"


@pytest.fixture(scope="module")
def backend(make_context, keeper, ray_runtime, tmp_path_factory):
    """One engine with its router."""
    context = make_context(tmp_path_factory.mktemp("logs"), keeper=keeper.address, num_engines=1)
    backend = VllmBackend(context)
    try:
        backend.start()
        yield context, backend
    finally:
        backend.close()


@pytest.mark.engine
class TestRolloutOnEngines(RolloutBackendSuite):
    entry = "vllm"

    @pytest.fixture(autouse=True)
    def _engines(self, backend):
        self.backend = backend[1]

    @contextmanager
    def running(self):
        yield self.backend


@pytest.mark.engine
class TestSyncOnEngines(SyncStrategySuite):
    entry = "shm"

    @pytest.fixture(autouse=True)
    def _engines(self, backend, make_model, monkeypatch):
        self.context, self.backend = backend
        self.make_model = make_model
        monkeypatch.setenv("VIME_RUN_ID", self.context.run_id)

    @contextmanager
    def engines(self):
        asyncio.run(self.backend.pause())
        yield Engines(self.backend.endpoints(), version=self.version)
        asyncio.run(self.backend.resume())

    def weights(self, seed):
        return [(name, tensor.contiguous()) for name, tensor in self.make_model(seed).state_dict().items()]

    def version(self, endpoint):
        request = urllib.request.Request(endpoint.url + "/weight_info")
        request.add_header("authorization", f"Bearer {endpoint.key}")
        with urllib.request.urlopen(request, timeout=20) as answer:
            return int(json.loads(answer.read())["weight_version"])
