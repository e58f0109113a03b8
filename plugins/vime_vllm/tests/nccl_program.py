"""Trainer ranks and engines of an invented node, each rank and each worker a process; `run_jobs` starts it all.

Two ranks hold a half of every tensor each, as under tensor parallelism, and make whole tensors of them with collectives
over gloo. An engine is an HTTP server in front of its workers, which receive with `GroupReader`.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from datetime import timedelta
from multiprocessing.connection import wait

import torch
import xxhash
from aiohttp import web
from torch import distributed

from vime_core.cluster.hosts import memory_identity
from vime_core.errors import VimeError
from vime_core.types import EngineEndpoint
from vime_vllm.config import NcclConfig
from vime_vllm.loop_thread import LoopThread
from vime_vllm.sync.group_reader import GroupReader
from vime_vllm.sync.nccl import NcclSync

RANKS = 2
LAYERS, HIDDEN, EXPERTS = 2, 64, 4
FORK = multiprocessing.get_context("fork")


def tensors(kind, seed):
    """Name to tensor of a small model, `dense` or `moe`, in Hugging Face names, or of a `large` one."""
    rng = torch.Generator().manual_seed(seed)

    def new(*shape, dtype=torch.bfloat16):
        return torch.randn(shape, generator=rng).to(dtype)

    if kind == "large":
        # More than sockets hold, so that whoever sends waits for whoever receives.
        return {f"model.layers.{layer}.weight": new(1024, 2048, dtype=torch.float32) for layer in range(4)}
    found = {"model.embed_tokens.weight": new(512, HIDDEN)}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        found[prefix + "input_layernorm.weight"] = new(HIDDEN, dtype=torch.float32)
        for name in "qkvo":
            found[f"{prefix}self_attn.{name}_proj.weight"] = new(HIDDEN, HIDDEN)
        if kind == "moe":
            found[prefix + "mlp.gate.weight"] = new(EXPERTS, HIDDEN)
        for owner in [f"mlp.experts.{index}" for index in range(EXPERTS)] if kind == "moe" else ["mlp"]:
            for name in ("gate", "up", "down"):
                found[f"{prefix}{owner}.{name}_proj.weight"] = new(3 * HIDDEN, HIDDEN)
    return found | {"model.norm.weight": new(HIDDEN), "lm_head.weight": new(512, HIDDEN)}


def digest(weights):
    """Of names, types, shapes and bits."""
    found = xxhash.xxh3_128()
    for name in sorted(weights):
        tensor = weights[name]
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        found.update(tensor.contiguous().view(torch.uint8).numpy().data)
    return found.hexdigest()


def run_jobs(jobs, deadline_s=120):
    """What came of each job: what each rank tells of its pushes, and a digest of what each worker got."""
    command = [sys.executable, __file__, json.dumps(jobs)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=deadline_s, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def node(job, tell):
    """One job: engines, then ranks, then what is left of the engines."""
    with ExitStack() as stack:
        engines = [Engine(stack, index, count, job.get("fault")) for index, count in enumerate(job["workers"])]
        store = distributed.TCPStore("127.0.0.1", 0, RANKS, is_master=True, wait_for_workers=False)
        ranks = [start(stack, trainer, rank, job, store.port, [e.endpoint for e in engines]) for rank in range(RANKS)]
        loop = LoopThread("engines")
        loop.start()
        stack.callback(loop.close)
        for engine in engines:
            loop.run(engine.serve())
        told = [pipe.recv() if pipe.poll(job["deadline_s"] * 2) else "silent" for _, pipe in ranks]
        whole = engines if job.get("fault") is None else []
        got = [[e.ask(position, "digest", None) for position in range(len(e.workers))] for e in whole]
        tell.send({"told": told, "got": got, "versions": [engine.version for engine in engines]})


def start(stack, work, *arguments):
    """A process that does some work, and the pipe to it."""
    ours, theirs = FORK.Pipe()
    process = FORK.Process(target=work, args=(theirs, *arguments))
    process.start()
    theirs.close()
    stack.callback(process.join)
    stack.callback(process.kill)
    return process, ours


def trainer(pipe, rank, job, port, endpoints):
    """One rank."""
    timeout = timedelta(seconds=60)
    store = distributed.TCPStore("127.0.0.1", port, RANKS, is_master=False, timeout=timeout)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=RANKS, timeout=timeout)
    os.environ["VIME_PUSH_DEADLINE_S"] = str(job["deadline_s"])
    sync = NcclSync(NcclConfig(), rank, RANKS)
    sync._capacity = job["bucket_bytes"]
    told, begin = [], time.monotonic()
    try:
        connect(sync, endpoints)
        for version, (kind, seed) in enumerate(job["pushes"], 1):
            begin = time.monotonic()
            report = sync.push(exported(kind, seed, rank), version)
            told.append(None if report is None else [report.version, report.tensors, report.bytes])
    except VimeError as error:  # what the job wants told
        told.append([f"{type(error).__name__}: {error}", time.monotonic() - begin])
    finally:
        sync.close()
    pipe.send(told)
    pipe.poll(60)


def connect(sync, endpoints):
    """On all ranks, or on none: the driver asks for no push when one has failed."""
    fault = None
    try:
        sync.connect(endpoints)
    except VimeError as error:
        fault = error
    faults = [None] * RANKS
    distributed.all_gather_object(faults, fault)
    if any(faults):
        raise next(filter(None, faults))


def exported(kind, seed, rank):
    """Names and whole tensors, made of the halves that the ranks hold."""
    for name, whole in tensors(kind, seed).items():
        halves = [torch.empty_like(part) for part in whole.chunk(RANKS)]
        distributed.all_gather(halves, whole.chunk(RANKS)[rank].contiguous())
        yield name, torch.cat(halves)


def worker(pipe, engine, index, fault):
    """One worker of an engine: does what it is asked for, until it is killed."""
    reader, held = GroupReader(torch.device("cpu")), {}
    mine = fault is not None and (fault["engine"], fault["worker"]) == (engine, index)
    while True:
        path, body = pipe.recv()
        if mine and path == fault["path"] and fault.get("bucket") in (None, (body or {}).get("bucket")):
            os.kill(os.getpid(), fault["signal"])
        try:
            if path == "/init_weight_transfer_engine":
                reader.join(body, index)
            if path == "/start_weight_update":
                reader.begin()
            if path == "/update_weights":
                held.update(reader.read(**body))
            if path == "/finish_weight_update":
                reader.finish()
            pipe.send(digest(held) if path == "digest" else None)
        except (ValueError, RuntimeError) as error:
            pipe.send(error)


class Engine:
    """The server in front of the workers."""

    def __init__(self, stack, index, count, fault):
        self.workers = [start(stack, worker, index, position, fault) for position in range(count)]
        self.version = "default"
        self._socket = socket.create_server(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.endpoint = EngineEndpoint(name=f"engine-{index}", url=url, key="secret", host=memory_identity())

    def ask(self, position, path, body):
        """What a worker answers; nothing comes of one that is stopped."""
        process, pipe = self.workers[position]
        pipe.send((path, body))
        wait([pipe, process.sentinel])
        try:
            answer = pipe.recv()
        except EOFError as error:
            raise RuntimeError(f"worker {position} died") from error
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def serve(self):
        """Answer from now on."""
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(application)
        await runner.setup()
        await web.SockSite(runner, self._socket).start()

    async def _answer(self, request):
        body = await request.json() if request.method == "POST" else {}
        inner = body.get("init_info") or body.get("update_info")
        try:
            workers = range(len(self.workers)) if request.method == "POST" else ()
            await asyncio.gather(*(asyncio.to_thread(self.ask, w, request.path, inner) for w in workers))
        except (ValueError, RuntimeError) as error:
            told = f"{type(error).__name__}: {error}"
            return web.json_response({"error": {"message": told, "code": 500}}, status=500)
        if request.path == "/finish_weight_update":
            self.version = body["weight_version"]
        return web.json_response({"weight_version": self.version, "world_size": len(self.workers)})


def main(jobs):
    """Do all jobs, one after the other, each in a process of its own."""
    torch.set_num_threads(1)
    results = []
    for job in jobs:
        with ExitStack() as stack:
            process, pipe = start(stack, lambda theirs, job=job: node(job, theirs))
            results.append(pipe.recv() if pipe.poll(60) else "silent")
            process.join(30)  # it ends its own
    print(json.dumps(results))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
