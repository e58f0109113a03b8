"""`NcclSync` over gloo into a real engine with two workers, and what is told when one of them is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from dataclasses import replace

import psutil
import pytest
import torch
from yarl import URL

from vime_core.errors import SyncError
from vime_core.types import SamplingParams
from vime_vllm.backend import VllmBackend
from vime_vllm.config import NcclConfig
from vime_vllm.sync.nccl import NcclSync

pytestmark = [pytest.mark.full, pytest.mark.engine]

DEADLINE_S = 10
PARAMS = SamplingParams(temperature=1.0, top_p=1.0, top_k=-1, max_tokens=6, stop_token_ids=(), seed=3)


@pytest.fixture(scope="module")
def backend(make_context, make_model, keeper, ray_runtime, process_group, tmp_path_factory):
    """One engine on two workers, that has weights."""
    context = make_context(
        tmp_path_factory.mktemp("logs"), keeper=keeper.address, num_engines=1, tensor_parallel_size=2
    )
    backend = VllmBackend(replace(context, sync="nccl"))
    try:
        backend.start()
        yield backend
    finally:
        backend.close()


@pytest.fixture(scope="module")
def sync(backend):
    """Connected to it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VIME_PUSH_DEADLINE_S", str(DEADLINE_S))
        sync = NcclSync(NcclConfig(bucket_mib=1), rank=0, world_size=1)
    try:
        sync.connect(backend.endpoints())
        yield sync
    finally:
        sync.close()


def logprobs(model, prompt, token_ids):
    """[R] of the response's tokens, by transformers."""
    ids = torch.tensor([[*prompt, *token_ids]])
    with torch.no_grad():
        found = model(ids).logits.float().log_softmax(-1)[0, len(prompt) - 1 : -1]
    return found.gather(1, ids[0, len(prompt) :, None]).squeeze(1).numpy()


def worker_of(backend, title):
    """The process of an engine's worker: it holds the server's socket, as it was forked."""
    port = URL(backend.endpoints()[0].url).port
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if title in " ".join(process.cmdline()) and any(
                found.status == psutil.CONN_LISTEN and found.laddr.port == port for found in process.net_connections()
            ):
                return process
    raise AssertionError(f"{title} was not found")


def test_the_engine_computes_with_what_was_broadcast(backend, sync, make_model):
    for version, seed in ((0, 0), (1, 5)):
        model = make_model(seed)
        asyncio.run(backend.pause())
        report = sync.push(iter(model.state_dict().items()), version)
        asyncio.run(backend.resume())
        assert report.tensors == len(model.state_dict())
        completion = asyncio.run(backend.generate([5, 6, 7], PARAMS))
        assert {span.version for span in completion.policy_versions} == {version}
        expected = logprobs(model, [5, 6, 7], completion.token_ids.tolist())
        assert abs(expected - completion.logprobs).max() < 1e-4


def test_a_worker_that_stops_in_the_middle_of_a_push_is_named_within_the_deadline(backend, sync, make_model):
    """Last: the engine cannot be used from then on."""
    worker = worker_of(backend, "VLLM::Worker_TP1")
    items = list(make_model(6).state_dict().items())
    sync._capacity = 50_000

    def weights():
        for index, item in enumerate(items):
            if index == len(items) // 2:
                worker.send_signal(signal.SIGSTOP)
            yield item

    asyncio.run(backend.pause())
    start = time.monotonic()
    try:
        with pytest.raises(SyncError, match=r"^weight push: engine-0 \(rank 2\) did not take bucket \d+ of version 2 "):
            sync.push(weights(), 2)
        assert time.monotonic() - start < DEADLINE_S
    finally:
        worker.send_signal(signal.SIGCONT)
