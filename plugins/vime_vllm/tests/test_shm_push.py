"""`ShmSync` against engines that are plain HTTP servers: order of messages, and every way in which a push can fail."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace

import pytest
import torch
from aiohttp import web

from vime_core.cluster.hosts import memory_identity
from vime_core.errors import ResourceError, SyncError
from vime_core.types import EngineEndpoint
from vime_vllm.config import ShmConfig
from vime_vllm.loop_thread import LoopThread
from vime_vllm.sync.segment import FOLDER, Segment
from vime_vllm.sync.shm import ShmSync
from vime_vllm.sync.unpack import read_weights

RUN_ID = f"push{os.getpid()}"
WEIGHTS = {f"w{index}": torch.full((200_000,), float(index)) for index in range(6)}
"""Each larger than half of the smallest bucket's half."""


class FakeEngine:
    """Does with a weight session what vLLM's receiver does, short of loading."""

    def __init__(self, name):
        self.name = name
        self.calls = []
        self.weights = {}
        self.version = "default"
        self.fail_at = {}
        """Path -> answer in place of the usual one."""

    async def answer(self, request):
        assert request.headers["Authorization"] == "Bearer secret"
        self.calls.append(request.path)
        if request.path in self.fail_at:
            return await self.fail_at[request.path]()
        body = await request.json() if request.method == "POST" else None
        if request.path == "/init_weight_transfer_engine":
            self.run_id = body["init_info"]["run_id"]
        if request.path == "/update_weights":
            update = body["update_info"]
            self.weights |= dict(read_weights(update["segment"], update["tensors"], self.run_id))
        if request.path == "/finish_weight_update":
            self.version = body["weight_version"]
        return web.json_response({"weight_version": self.version})


@pytest.fixture
def engines():
    """Two of them, listening."""
    loop = LoopThread("fake engines")
    loop.start()
    fakes = [FakeEngine(f"engine-{index}") for index in range(2)]
    runners = [loop.run(_serve(fake)) for fake in fakes]
    yield fakes
    for runner in runners:
        loop.run(runner.cleanup())
    loop.close()


async def _serve(fake):
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", fake.answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]
    fake.endpoint = EngineEndpoint(name=fake.name, url=f"http://127.0.0.1:{port}", key="secret", host=memory_identity())
    return runner


@pytest.fixture
def sync(engines, monkeypatch):
    monkeypatch.setenv("VIME_RUN_ID", RUN_ID)
    monkeypatch.setenv("VIME_PUSH_DEADLINE_S", "5")
    sync = ShmSync(ShmConfig(bucket_mib=4), rank=0, world_size=1)
    sync.connect([engine.endpoint for engine in engines])
    yield sync
    sync.close()
    sync.close()
    assert not _segments()


def _segments():
    return list(FOLDER.glob(f"vime-{RUN_ID}-*"))


def test_all_weights_reach_every_engine_in_a_session(engines, sync):
    for version in (3, 4):
        weights = {name: tensor + version for name, tensor in WEIGHTS.items()}
        report = sync.push(iter(weights.items()), version)
        assert (report.version, report.tensors, report.bytes) == (version, 6, 6 * 800_000)
        assert list(report.checksums) == list(WEIGHTS)
        for engine in engines:
            assert list(engine.weights) == list(WEIGHTS)
            assert all(torch.equal(engine.weights[name], weights[name]) for name in weights)
            assert engine.version == str(version)
    session = ["/start_weight_update", *["/update_weights"] * 3, "/finish_weight_update", "/weight_info"]
    assert engines[0].calls == engines[1].calls == ["/init_weight_transfer_engine", *session, *session]


def test_weights_in_flight_stay_below_the_limit(engines, sync):
    sync.push(iter(WEIGHTS.items()), 1)
    assert sum(path.stat().st_size for path in _segments()) <= 4 << 20


def test_a_tensor_is_copied_before_the_next_is_asked_for(engines, sync):
    """The trainer gathers each tensor into a buffer that it uses again."""
    buffer = torch.zeros(1000)

    def gathered():
        for index in range(4):
            buffer.fill_(index)
            yield f"w{index}", buffer

    sync.push(gathered(), 1)
    assert [engines[1].weights[f"w{index}"][0].item() for index in range(4)] == [0, 1, 2, 3]


async def _refuse():
    return web.json_response({"error": {"message": "ValueError: w3: checksum\nno match", "code": 500}}, status=500)


async def _never():
    await asyncio.sleep(3600)


async def _other_version():
    return web.json_response({"weight_version": "7"})


@pytest.mark.parametrize(
    ("path", "answer", "told"),
    [
        ("/start_weight_update", _refuse, r"engine-1 failed.*start_weight_update.*checksum no match"),
        ("/update_weights", _refuse, r"engine-1 failed.*update_weights.*checksum no match"),
        ("/finish_weight_update", _refuse, r"engine-1 failed.*finish_weight_update.*checksum no match"),
        ("/weight_info", _other_version, r"after the push of version 2 engine-1 reports .*7"),
    ],
)
def test_one_engine_that_fails_fails_the_push_and_is_named(engines, sync, path, answer, told):
    engines[1].fail_at[path] = answer
    weights = iter(WEIGHTS.items())
    with pytest.raises(SyncError, match=told):
        sync.push(weights, 2)
    assert not _segments()
    assert list(weights) == [], "the other ranks wait until this one has gone through all tensors"


def test_an_engine_that_does_not_answer_fails_the_push_in_time(engines, sync):
    engines[0].fail_at["/update_weights"] = _never
    with pytest.raises(SyncError, match=r"engine-0 failed: no answer.*update_weights within 5 s"):
        sync.push(iter(WEIGHTS.items()), 2)


def test_an_engine_that_has_gone_is_named(engines, sync, monkeypatch):
    monkeypatch.setenv("VIME_PUSH_DEADLINE_S", "5")
    other = ShmSync(ShmConfig(), rank=0, world_size=1)
    gone = EngineEndpoint(name="engine-7", url="http://127.0.0.1:9", key="secret", host=memory_identity())
    with pytest.raises(SyncError, match=r"engine-7 failed.*Connect"):
        other.connect([engines[0].endpoint, gone])
    other.close()


def test_a_trainer_that_breaks_off_is_the_cause(engines, sync):
    def broken():
        yield "w0", torch.zeros(10)
        raise ArithmeticError("gather failed")

    with pytest.raises(ArithmeticError, match="gather failed"):
        sync.push(broken(), 2)
    assert engines[0].version == "default"
    assert "/finish_weight_update" not in engines[0].calls


def test_no_weights_and_no_engines_are_errors(engines, sync):
    with pytest.raises(SyncError, match="no weights"):
        sync.push(iter([]), 1)
    with pytest.raises(SyncError, match="no engines are connected"):
        ShmSync(ShmConfig(), rank=0, world_size=1).push(iter(WEIGHTS.items()), 1)


def test_short_shared_memory_fails_the_push(engines, sync, monkeypatch):
    def full(self, size):
        raise ResourceError("a weight push needs ...")

    monkeypatch.setattr(Segment, "reserve", full)
    weights = iter(WEIGHTS.items())
    with pytest.raises(ResourceError):
        sync.push(weights, 1)
    assert list(weights) == []


def test_other_ranks_only_gather(engines, sync):
    rank = ShmSync(ShmConfig(), rank=1, world_size=2)
    rank.connect([engine.endpoint for engine in engines])
    weights = iter(WEIGHTS.items())
    calls = list(engines[0].calls)
    assert rank.push(weights, 1) is None
    assert list(weights) == []
    rank.close()
    assert engines[0].calls == calls


def test_an_engine_on_another_host_is_refused(sync, engines, tmp_path):
    told = len(engines[0].calls)
    away = replace(engines[1].endpoint, host=memory_identity(tmp_path))
    with pytest.raises(
        ResourceError, match=r"^sync=shm .* of one host, and engine-1 at http://127\.0\.0\.1:\d+ is on "
    ):
        sync.connect([engines[0].endpoint, away])
    assert len(engines[0].calls) == told
