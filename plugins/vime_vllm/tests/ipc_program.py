"""Trainer ranks on an invented node: as a program one rank, `run_ranks` starts them all.

A rank holds its share of a tensor set, as under tensor and pipeline parallelism, and makes whole tensors of the shares
with collectives over gloo, as a training backend does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from datetime import timedelta

import torch
from torch import distributed

from vime_core.errors import VimeError
from vime_core.testing.devices import FakeMemory
from vime_core.types import EngineEndpoint
from vime_vllm.config import IpcConfig
from vime_vllm.sync.ipc import IpcSync

DEADLINE = timedelta(seconds=60)
TENSOR, PIPELINE = 2, 2
LAYERS, HIDDEN, EXPERTS = 4, 64, 4


def tensors(kind, seed):
    """Name to (stage that holds it, tensor) of a small model, `dense` or `moe`, in Hugging Face names."""
    rng = torch.Generator().manual_seed(seed)

    def new(*shape, dtype=torch.bfloat16):
        return torch.randn(shape, generator=rng).to(dtype)

    found = {"model.embed_tokens.weight": (0, new(512, HIDDEN))}
    for layer in range(LAYERS):
        stage, prefix = layer * PIPELINE // LAYERS, f"model.layers.{layer}."
        found[prefix + "input_layernorm.weight"] = (stage, new(HIDDEN, dtype=torch.float32))
        for name in "qkvo":
            found[f"{prefix}self_attn.{name}_proj.weight"] = (stage, new(HIDDEN, HIDDEN))
        if kind == "moe":
            found[prefix + "mlp.gate.weight"] = (stage, new(EXPERTS, HIDDEN))
        for owner in [f"mlp.experts.{index}" for index in range(EXPERTS)] if kind == "moe" else ["mlp"]:
            for name in ("gate", "up", "down"):
                found[f"{prefix}{owner}.{name}_proj.weight"] = (stage, new(3 * HIDDEN, HIDDEN))
    return found | {"model.norm.weight": (1, new(HIDDEN)), "lm_head.weight": (1, new(512, HIDDEN))}


def exported(kind, seed, rank, groups):
    """Names and whole tensors on every rank; each rank puts in its own share only."""
    for name, (stage, whole) in tensors(kind, seed).items():
        shares = [torch.empty_like(part) for part in whole.chunk(TENSOR)]
        if stage == rank // TENSOR:
            distributed.all_gather(shares, whole.chunk(TENSOR)[rank % TENSOR].contiguous(), group=groups[stage])
        gathered = torch.cat(shares)
        distributed.broadcast(gathered, src=stage * TENSOR)
        yield name, gathered


def run_ranks(jobs, devices, port, deadline_s=120):
    """What each rank tells of each job: for each push, the report's numbers or the error."""
    with ExitStack() as stack:
        processes = []
        for rank in range(len(devices)):
            command = [
                sys.executable,
                __file__,
                json.dumps({"jobs": jobs, "rank": rank, "devices": devices, "port": port}),
            ]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            stack.callback(process.wait)
            stack.callback(process.kill)
            processes.append(process)
        told = [process.communicate(timeout=deadline_s) for process in processes]
    for process, (_, errors) in zip(processes, told, strict=True):
        assert process.returncode == 0, errors
    return list(zip(*(json.loads(output) for output, _ in told), strict=True))


def main(task):
    """Join the other ranks, do all jobs, tell."""
    torch.set_num_threads(1)
    rank, devices = task["rank"], task["devices"]
    store = distributed.TCPStore("127.0.0.1", task["port"], len(devices), is_master=False, timeout=DEADLINE)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=len(devices), timeout=DEADLINE)
    groups = [distributed.new_group([0, 1]), distributed.new_group([2, 3])]
    print(json.dumps([push(job, rank, devices, groups) for job in task["jobs"]]))
    distributed.destroy_process_group()


def push(job, rank, devices, groups):
    """What this rank has to tell of the pushes of a job."""
    own = [devices[rank], *(uuid for uuid in devices if uuid != devices[rank])]
    capacity = job.get("capacity", {}).get(str(rank), 1 << 30)
    memory = FakeMemory(job["node"], own, ordinals_count=True, capacity=capacity)
    sync = IpcSync(IpcConfig(bucket_mib=1), rank, len(devices), lambda: memory)
    sync._capacity = job["bucket_bytes"]
    told = []
    try:
        sync.connect([EngineEndpoint(**endpoint) for endpoint in job["endpoints"]])
        for version, (kind, seed) in enumerate(job["pushes"], 1):
            report = sync.push(exported(kind, seed, rank, groups), version)
            told.append(None if report is None else [report.version, report.tensors, report.bytes])
    except VimeError as error:  # what the job wants told
        told.append(f"{type(error).__name__}: {error}")
    finally:
        sync.close()
    return told


if __name__ == "__main__":
    os.environ["VIME_PUSH_DEADLINE_S"] = "30"
    main(json.loads(sys.argv[1]))
