"""`NcclSync` over gloo, against engines that are plain HTTP servers with one reader a worker, each in a thread."""

from __future__ import annotations

import asyncio
import gc
import os
import time
from contextlib import contextmanager

import psutil
import pytest
import torch
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from vime_core.accelerators.collective import backend_of, own_address
from vime_core.cluster.hosts import memory_identity
from vime_core.errors import SyncError
from vime_core.types import EngineEndpoint
from vime_vllm.config import NcclConfig
from vime_vllm.loop_thread import LoopThread
from vime_vllm.sync.bucket import buckets
from vime_vllm.sync.group_buffer import GroupBuffer
from vime_vllm.sync.group_plan import plan_group
from vime_vllm.sync.group_reader import GroupReader
from vime_vllm.sync.nccl import NcclSync

CPU = torch.device("cpu")
WEIGHTS = {f"w{index}": torch.full((1000,), float(index)) for index in range(6)}
BUCKET_BYTES = 9000
"""Of the tests: room for two of them."""


class Engine:
    """One engine: a reader for each worker does what vLLM's receiver does there, short of loading."""

    def __init__(self, name, workers):
        self.name = name
        self.readers = [GroupReader(CPU) for _ in range(workers)]
        self.held = [{} for _ in range(workers)]
        """What each worker got."""
        self.version = "default"
        self.change = {}
        """Path -> what is made of a message on arrival; None: it is never answered."""

    async def answer(self, request):
        body = await request.json() if request.method == "POST" else None
        if request.path in self.change:
            body = self.change[request.path](body)
            if body is None:
                await asyncio.Event().wait()
        try:
            await asyncio.gather(*(asyncio.to_thread(self._work, w, request.path, body) for w in self.workers))
        except (ValueError, RuntimeError) as error:
            told = f"{type(error).__name__}: {error}"
            return web.json_response({"error": {"message": told, "code": 500}}, status=500)
        if request.path == "/finish_weight_update":
            self.version = body["weight_version"]
        return web.json_response({"weight_version": self.version, "world_size": len(self.readers)})

    @property
    def workers(self):
        return range(len(self.readers))

    def _work(self, worker, path, body):
        reader = self.readers[worker]
        if path == "/init_weight_transfer_engine":
            reader.join(body["init_info"], worker)
        if path == "/start_weight_update":
            reader.begin()
        if path == "/update_weights":
            self.held[worker].update(reader.read(**body["update_info"]))
        if path == "/finish_weight_update":
            reader.finish()


async def _serve(engine):
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", engine.answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
    engine.endpoint = EngineEndpoint(name=engine.name, url=url, key="secret", host=memory_identity())
    return runner


@pytest.fixture(scope="module", autouse=True)
def trainer(process_group):
    """The process group of a trainer with one rank."""


@pytest.fixture
def serve():
    """Start engines, given how many workers each has."""
    loop, runners, engines = LoopThread("fake engines"), [], []
    loop.start()

    def start(*workers):
        for index, count in enumerate(workers):
            engines.append(Engine(f"engine-{index}", count))
            runners.append(loop.run(_serve(engines[-1])))
        return engines

    yield start
    for engine in engines:
        for reader in engine.readers:
            reader.close()
    for runner in runners:
        loop.run(runner.cleanup())
    loop.close()


@contextmanager
def connected(engines, monkeypatch, deadline_s=10):
    """Rank 0 of 1."""
    monkeypatch.setenv("VIME_PUSH_DEADLINE_S", str(deadline_s))
    sync = NcclSync(NcclConfig(), 0, 1)
    sync._capacity = BUCKET_BYTES
    try:
        sync.connect([engine.endpoint for engine in engines])
        yield sync
    finally:
        sync.close()
        sync.close()


def listeners():
    """Sockets of this process that listen."""
    return sorted(c.laddr for c in psutil.Process().net_connections() if c.status == psutil.CONN_LISTEN)


@given(st.dictionaries(st.text(min_size=1), st.integers(1, 16), min_size=1, max_size=40))
def test_every_worker_has_a_rank_of_its_own(workers):
    plan = plan_group(workers)
    assert {name: len(ranks) for name, ranks in plan.engines.items()} == workers
    everyone = [rank for name in workers for rank in plan.engines[name]]
    assert [0, *everyone] == list(range(plan.size)), "rank 0 is the trainer's"


@pytest.mark.parametrize("workers", [{}, {"engine-0": 1, "engine-1": 0}])
def test_a_group_needs_engines_with_workers(workers):
    with pytest.raises(ValueError, match=r"^a weight group needs engines with a worker each"):
        plan_group(workers)


def test_the_backend_follows_the_device():
    assert [backend_of(torch.device(kind)) for kind in ("cpu", "cuda")] == ["gloo", "nccl"]
    assert own_address("127.0.0.1") == "127.0.0.1"


def test_all_workers_get_every_bucket(serve, monkeypatch):
    engines = serve(1, 2)
    big = torch.randn(50_000).bfloat16()
    weights = {**WEIGHTS, "empty": torch.empty(0, 3), "big": big, "count": torch.tensor([7])}
    with connected(engines, monkeypatch) as sync:
        for version in (3, 4, 9):
            sent = {name: tensor + version for name, tensor in weights.items()}
            report = sync.push(iter(sent.items()), version)
            assert (report.version, report.tensors) == (version, len(sent))
            assert report.bytes == sum(tensor.nbytes for tensor in sent.values())
            for engine in engines:
                assert engine.version == str(version)
                for held in engine.held:
                    assert all(held[name].dtype == sent[name].dtype for name in sent)
                    assert all(torch.equal(held[name], sent[name]) for name in sent)


def test_nothing_is_left_of_100_pushes_and_of_the_group(serve, monkeypatch):
    engines = serve(1, 2)
    before = listeners()
    with connected(engines, monkeypatch) as sync:
        for version in range(120):
            sync.push(iter(WEIGHTS.items()), version)
            if version == 20:  # the engines' threads are all there by now
                counted = {kind: len(os.listdir(f"/proc/self/{kind}")) for kind in ("fd", "task")}
        for kind, count in counted.items():
            # Pools of threads and connections grow by a few with chance; what leaks does so with every push.
            assert len(os.listdir(f"/proc/self/{kind}")) < count + 20, kind
        held = [found for found in listeners() if found not in before]
        assert {found.ip for found in held} == {"127.0.0.1"}, "whoever comes is let in"
    for engine in engines:
        for reader in engine.readers:
            reader.close()
    gc.collect()
    assert set(listeners()) <= set(before)


def _of_update(**change):
    return {"/update_weights": lambda body: {"update_info": body["update_info"] | change}}


def _wrong_checksum(body):
    body["update_info"]["tensors"][-1]["checksum"] = "0" * 32
    return body


def _twice(body):
    body["update_info"]["bucket"] = 0
    return body


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (_of_update(version=4), r"ValueError: version 4 of the weights is stale: version 4 is here already"),
        (_of_update(version=2), r"ValueError: version 2 of the weights is stale: version 4 is here already"),
        (_of_update(size=4096), r"ValueError: w1 ends beyond the 4096 bytes of its memory"),
        (_of_update(size=0), r"ValueError: a bucket needs a version, a number and a size, not 5, 0, 0"),
        ({"/update_weights": _wrong_checksum}, r"ValueError: w1: checksum \w+ of the bytes read is not 0{32} as sent"),
        ({"/update_weights": _twice}, r"bucket 0 of version 5 came, and bucket 1 of version 5 was due"),
        ({"/start_weight_update": lambda body: 1 / 0}, r"Internal Server Error"),
    ],
    ids=["same version", "older version", "truncated", "empty", "checksum", "bucket twice", "crash"],
)
def test_what_is_wrong_stops_the_push_with_the_reason_in_one_line(serve, monkeypatch, change, told):
    engines = serve(2, 1)
    with connected(engines, monkeypatch, deadline_s=30) as sync:
        sync.push(iter(WEIGHTS.items()), 4)
        engines[0].change = change
        weights, start = iter(WEIGHTS.items()), time.monotonic()
        with pytest.raises(SyncError, match=rf"^weight push: engine-0 failed: .*{told}") as caught:
            sync.push(weights, 5)
        assert time.monotonic() - start < 5, "an engine's own fault is told at once"
        assert "\n" not in str(caught.value)
        assert list(weights) == [], "the other ranks wait until this one has gone through all tensors"
        with pytest.raises(SyncError, match="no engines are connected"):
            sync.push(iter(WEIGHTS.items()), 6)
    assert engines[0].version == engines[1].version == "4"


@pytest.mark.parametrize(
    ("path", "told"),
    [
        pytest.param(
            "/init_weight_transfer_engine",
            r"engine-1 \(rank 2, 3\) did not join the group of trainer and engines",
            marks=pytest.mark.full,
        ),
        ("/update_weights", r"engine-1 \(rank 2, 3\) did not take bucket 0 of version 1 in time: it hangs, has died "),
        pytest.param(
            "/finish_weight_update",
            r"engine-1 failed: no answer to POST .*/finish_weight_update within ",
            marks=pytest.mark.full,
        ),
    ],
)
def test_an_engine_that_hangs_ends_the_push_within_the_deadline(serve, monkeypatch, path, told):
    engines = serve(1, 2)
    engines[1].change = {path: lambda body: None}
    seconds = []

    def push():
        seconds.append(time.monotonic())
        with connected(engines, monkeypatch, deadline_s=5) as sync:
            seconds.append(time.monotonic())
            sync.push(iter(WEIGHTS.items()), 1)

    with pytest.raises(SyncError, match=rf"^weight push: {told}"):
        push()
    assert time.monotonic() - seconds[-1] < 5


def test_an_engine_that_cannot_use_the_backend_says_so(serve, monkeypatch):
    engines = serve(1, 1)
    engines[1].change = {
        "/init_weight_transfer_engine": lambda body: {"init_info": body["init_info"] | {"backend": "nccl"}}
    }
    with (
        pytest.raises(SyncError, match=r"^weight push: engine-1 failed: .*the trainer broadcasts over nccl, and this "),
        connected(engines, monkeypatch),
    ):
        pass


def test_a_stranger_at_the_meeting_is_found_out(serve, monkeypatch):
    engines = serve(1)
    engines[0].change = {
        "/init_weight_transfer_engine": lambda body: {"init_info": body["init_info"] | {"greeting": "00" * 16}}
    }
    with (
        pytest.raises(SyncError, match=r"engine-0 failed: .*whoever broadcasts is not the trainer that asked to join"),
        connected(engines, monkeypatch),
    ):
        pass


def test_weights_that_cannot_be_made_leave_the_engines_as_they_were(serve, monkeypatch):
    engines = serve(1)

    def failing():
        yield from WEIGHTS.items()
        raise ArithmeticError("the trainer failed")

    with connected(engines, monkeypatch) as sync:
        with pytest.raises(ArithmeticError):
            sync.push(failing(), 1)
        assert engines[0].version == "default"


def test_no_weights_is_an_error(serve, monkeypatch):
    with connected(serve(1), monkeypatch) as sync, pytest.raises(SyncError, match="no weights"):
        sync.push(iter([]), 1)


@given(st.lists(st.integers(0, 3000), min_size=1, max_size=30), st.integers(1, 2000))
def test_buffers_are_no_larger_than_planned(sizes, capacity):
    """What `vime plan` counts, but for what aligns the tensors of a bucket."""
    buffers = [GroupBuffer(CPU) for _ in range(2)]
    for _ in buckets(((str(i), torch.zeros(size)) for i, size in enumerate(sizes)), buffers, capacity):
        pass
    assert max(buffer.size for buffer in buffers) <= max(capacity, *(4 * size for size in sizes), 1)


def test_memory_that_is_short_is_told():
    buffer = GroupBuffer(CPU)
    with pytest.raises(SyncError, match=r"^weight push: no room for 1152921504606846976 bytes: .*bucket_mib$"):
        buffer.reserve(1 << 60)
