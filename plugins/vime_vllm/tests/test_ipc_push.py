"""`IpcSync` on invented devices, against engines that are plain HTTP servers with one reader a device."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import os
import secrets
import sys
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from aiohttp import web
from torch import distributed

from vime_core.accelerators.device_memory import HANDLE_FIELDS, CudaMemory, handle_from_json, handle_to_json
from vime_core.cluster.hosts import memory_identity
from vime_core.errors import ResourceError, SyncError
from vime_core.testing.devices import FakeMemory, allocations
from vime_core.types import EngineEndpoint
from vime_vllm.config import IpcConfig
from vime_vllm.loop_thread import LoopThread
from vime_vllm.sync.device_reader import DeviceReader
from vime_vllm.sync.ipc import IpcSync

UUIDS = [f"GPU-{index}{index}{index}" for index in range(4)]
WEIGHTS = {f"w{index}": torch.full((1000,), float(index)) for index in range(6)}
BUCKET_BYTES = 9000
"""Of the tests: room for two of them."""
PROGRAM = Path(__file__).with_name("ipc_program.py")


@pytest.fixture(scope="module")
def program():
    """`ipc_program.py`, for its functions."""
    spec = importlib.util.spec_from_file_location("vime_vllm_ipc_program", PROGRAM)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class Engine:
    """One engine: a reader on each of its devices does what vLLM's receiver does there, short of loading."""

    def __init__(self, name, memories):
        self.name = name
        self.readers = [DeviceReader(memory) for memory in memories]
        self.held = [{} for _ in memories]
        """What each worker got."""
        self.version = "default"
        self.change = lambda update: update
        """Applied to every bucket on arrival."""
        self.loading_s = 0.0

    async def answer(self, request):
        body = await request.json() if request.method == "POST" else None
        try:
            if request.path == "/init_weight_transfer_engine":
                for reader in self.readers:
                    reader.require_device(body["init_info"]["devices"])
            if request.path == "/update_weights":
                await asyncio.sleep(self.loading_s)
                update = self.change(body["update_info"])
                for reader, held in zip(self.readers, self.held, strict=True):
                    held.update(reader.read(**update))
        except ValueError as error:
            return web.json_response({"error": {"message": f"ValueError: {error}", "code": 500}}, status=500)
        if request.path == "/finish_weight_update":
            self.version = body["weight_version"]
        return web.json_response({"weight_version": self.version})


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


@pytest.fixture
def node():
    """An invented node; nothing of its memory may be left."""
    name = f"vime-fake-{secrets.token_hex(4)}"
    yield name
    gc.collect()
    left = allocations(name)
    for path in left:
        path.unlink()
    assert not left


@pytest.fixture
def serve(node):
    """Start engines, given the memories of each; as the masks of a run have it, own devices come first."""
    loop, runners, engines = LoopThread("fake engines"), [], []
    loop.start()

    def start(*devices_of_engines):
        for index, own in enumerate(devices_of_engines):
            visible = [UUIDS[device] for device in own] + [u for i, u in enumerate(UUIDS) if i not in own]
            memories = [FakeMemory(node, visible, position, ordinals_count=True) for position in range(len(own))]
            engines.append(Engine(f"engine-{index}", memories))
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
def connected(engines, memory, monkeypatch):
    """Rank 0 of 1."""
    monkeypatch.setenv("VIME_PUSH_DEADLINE_S", "10")
    sync = IpcSync(IpcConfig(), 0, 1, lambda: memory)
    sync._capacity = BUCKET_BYTES
    try:
        sync.connect([engine.endpoint for engine in engines])
        yield sync
    finally:
        sync.close()
        sync.close()


def test_ranks_push_to_the_engines_on_their_devices(program, node, serve):
    """TP2 x PP2, to one engine with TP2 and to two with TP1, so that two devices have no engine; then one rank fails.

    Dense, then with experts, then dense again, in several buckets. The ranks start once, as that takes longest.
    """
    engines = serve((2, 3), (3,), (0,), (0, 1))
    for engine in engines:
        # Long enough for every rank to be back at its first buffer, if it did not wait.
        engine.loading_s = 0.05
    pushes = [("dense", 1), ("moe", 2), ("dense", 3)]
    jobs = [
        {"endpoints": engines[:1], "pushes": pushes},
        {"endpoints": engines[1:3], "pushes": pushes},
        {"endpoints": engines[3:], "pushes": pushes, "capacity": {"3": 150_000}},
    ]
    for job in jobs:
        job |= {"node": node, "endpoints": [asdict(engine.endpoint) for engine in job["endpoints"]]}
        job["bucket_bytes"] = 100_000
    store = distributed.TCPStore("127.0.0.1", 0, len(UUIDS), is_master=True, wait_for_workers=False)
    *whole, short = program.run_ranks(jobs, UUIDS, store.port)

    sent = [{name: tensor for name, (_, tensor) in program.tensors(*push).items()} for push in pushes]
    reports = [[i, len(found), sum(tensor.nbytes for tensor in found.values())] for i, found in enumerate(sent, 1)]
    assert whole == [(reports, [None] * 3, [None] * 3, [None] * 3)] * 2, "only rank 0 reports"
    last = sent[0] | sent[1] | sent[2]
    for engine in engines[:3]:
        assert engine.version == "3"
        for held in engine.held:
            assert held.keys() == last.keys()
            assert all(held[name].dtype == last[name].dtype for name in last)
            assert all(torch.equal(held[name], last[name]) for name in last)

    assert engines[3].version == "default"
    for [reason] in short:
        assert reason.startswith("SyncError: weight push: device GPU-333: out of memory on GPU-333")
        assert reason.endswith("lower sync.bucket_mib")


def test_nothing_leaks_in_200_pushes(node, serve, monkeypatch):
    engines = serve((0,))
    with connected(engines, FakeMemory(node, UUIDS), monkeypatch) as sync:
        sync.push(iter(WEIGHTS.items()), 1)
        descriptors, files = len(os.listdir("/proc/self/fd")), allocations(node)
        maps = Path("/proc/self/maps").read_text().count(node)
        for version in range(2, 202):
            weights = {name: tensor + version for name, tensor in WEIGHTS.items()}
            assert sync.push(iter(weights.items()), version).version == version
        assert all(torch.equal(engines[0].held[0][name], tensor) for name, tensor in weights.items())
        assert len(os.listdir("/proc/self/fd")) == descriptors
        assert (allocations(node), Path("/proc/self/maps").read_text().count(node)) == (files, maps)
    assert not allocations(node)


def test_a_buffer_that_grows_is_opened_anew_and_the_old_one_given_back(node, serve, monkeypatch):
    engines = serve((0,))
    with connected(engines, FakeMemory(node, UUIDS), monkeypatch) as sync:
        for version, size in ((1, 10), (2, 50_000), (3, 10), (4, 90_000)):
            weights = {"a": torch.full((size,), 1.0 + version), "b": torch.full((size,), 2.0 + version)}
            sync.push(iter(weights.items()), version)
            assert all(torch.equal(engines[0].held[0][name], weights[name]) for name in weights)
            assert len(allocations(node)) <= 2
    gc.collect()


def _foreign_key(update):
    [handle] = update["handles"].values()
    return update | {"handles": {"GPU-999": handle}}


def _of_handle(**change):
    return lambda update: update | {"handles": {uuid: h | change for uuid, h in update["handles"].items()}}


def _wrong_checksum(update):
    update["tensors"][-1]["checksum"] = "0" * 32
    return update


def _truncate(update):
    for path in allocations(next(iter(update["handles"].values()))["memory"].rpartition("-GPU")[0]):
        os.truncate(path, 100)
    return update


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (_foreign_key, r"no trainer rank is on device GPU-000 of this engine; they are on GPU-999"),
        (lambda update: update | {"handles": []}, r"needs a number and the handles"),
        (_truncate, r"the memory of the handle holds 100 of 8\d+ bytes"),
        (_of_handle(size=4096), r"w1 ends beyond the 4096 bytes of its memory"),
        (_of_handle(device=4), r"invalid device ordinal 4: 4 devices are visible"),
        (_wrong_checksum, r"w1: checksum \w+ of the bytes read is not 0{32} as sent"),
    ],
    ids=["stale UUID", "no handles", "truncated memory", "truncated bucket", "ordinal", "checksum"],
)
def test_what_is_wrong_stops_the_push_with_the_reason_in_one_line(node, serve, monkeypatch, change, told):
    engines = serve((0,))
    with connected(engines, FakeMemory(node, UUIDS), monkeypatch) as sync:
        engines[0].change = change
        weights = iter(WEIGHTS.items())
        with pytest.raises(SyncError, match=rf"^weight push: engine-0 failed: .*update_weights.*{told}") as caught:
            sync.push(weights, 1)
        assert "\n" not in str(caught.value)
        assert list(weights) == [], "the other ranks wait until this one has gone through all tensors"
    assert engines[0].version == "default"
    assert not engines[0].held[0]


def test_a_handle_of_another_device_or_of_memory_that_is_gone_is_refused(node, serve, monkeypatch):
    engines = serve((0,))
    other = FakeMemory(node, UUIDS, 1)
    memory = other.allocate(9000)
    foreign = other.export(memory)
    for handle, told in (
        (foreign, "handle is not of memory of device GPU-000"),
        (foreign | {"memory": f"{node}-GPU-000-1-2-3"}, "memory was given back"),
    ):
        with connected(engines, FakeMemory(node, UUIDS), monkeypatch) as sync:
            engines[0].change = _of_handle(**handle)
            with pytest.raises(SyncError, match=told):
                sync.push(iter(WEIGHTS.items()), 1)
    del memory
    other.collect()


def test_an_engine_without_a_rank_on_its_device_is_refused_when_it_connects(node, serve, monkeypatch):
    engines = serve((2,))
    with (
        pytest.raises(SyncError, match=r"^weight push: engine-0 failed: .*no trainer rank is on device GPU-222 "),
        connected(engines, FakeMemory(node, UUIDS), monkeypatch),
    ):
        pass


def test_an_engine_on_a_host_without_ranks_is_refused(node, monkeypatch, tmp_path):
    away = EngineEndpoint(name="engine-7", url="http://127.0.0.1:9", key="secret", host=memory_identity(tmp_path))
    sync = IpcSync(IpcConfig(), 0, 1, lambda: FakeMemory(node, UUIDS))
    with pytest.raises(ResourceError, match=r"^sync=ipc .*engine-7 at http://127\.0\.0\.1:9 is on a host without"):
        sync.connect([away])
    sync.close()


def test_two_ranks_on_one_device_are_refused(node, monkeypatch):
    sync = IpcSync(IpcConfig(), 0, 1, lambda: FakeMemory(node, UUIDS))
    host = memory_identity()
    monkeypatch.setattr(sync._ranks, "together", lambda step: [("GPU-000", host), ("GPU-111", host), ("GPU-000", host)])
    with pytest.raises(ResourceError, match=r"^trainer ranks 0 and 2 are on one device, GPU-000"):
        sync.connect([])
    sync.close()


def test_no_weights_is_an_error(node, serve, monkeypatch):
    with (
        connected(serve((0,)), FakeMemory(node, UUIDS), monkeypatch) as sync,
        pytest.raises(SyncError, match="no weights"),
    ):
        sync.push(iter([]), 1)


HANDLE = (3, b"\x00memory", 4096, 512, b"/counter", 7, b"\xffevent", True)


def test_torch_shares_and_opens_with_the_fields_of_a_handle(monkeypatch):
    """What torch returns of a storage reaches torch in the importer unchanged, but for the ordinal."""
    monkeypatch.setattr(torch.UntypedStorage, "_share_cuda_", lambda storage: HANDLE)
    opened = []

    def new_shared(*fields):
        opened.append(fields)
        return torch.arange(5, dtype=torch.uint8).untyped_storage()

    monkeypatch.setattr(torch.UntypedStorage, "_new_shared_cuda", new_shared)
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    handle = CudaMemory(0).export(torch.zeros(4, dtype=torch.uint8))
    assert all(isinstance(value, str | int) for value in handle.values())
    assert CudaMemory(1).open(handle).tolist() == [0, 1, 2, 3, 4]
    assert opened == [(1, *HANDLE[1:])]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"memory": 3}, "memory of a device handle must be bytes"),
        ({"event": "%%"}, "event of a device handle is no base64"),
        ({"size": -1}, "size of a device handle must be int"),
        ({"wait": 1}, "wait of a device handle must be bool"),
        ({"device": True}, "device of a device handle must be int"),
        ({"more": 1}, "must have the fields"),
    ],
)
def test_a_handle_that_is_malformed_never_reaches_torch(change, told):
    with pytest.raises(ValueError, match=told):
        handle_from_json(handle_to_json(HANDLE) | change)
    assert len(HANDLE) == len(HANDLE_FIELDS)
