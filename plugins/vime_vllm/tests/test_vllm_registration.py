"""What is registered, and that registering imports nothing heavy."""

from __future__ import annotations

import subprocess
import sys

RECEIVING = """
from types import SimpleNamespace
import torch
from vime_core.testing.devices import FakeMemory, allocations
from vime_vllm.sync.bucket import Bucket
from vime_vllm.sync.device_buffer import DeviceBuffer
from vime_vllm.sync.wire import device_update_json

node = f"vime-fake-{os.getpid()}"
memory = FakeMemory(node, ["GPU-7"])
bucket = Bucket(DeviceBuffer(memory), 1000)
bucket.add("w", torch.tensor([1.0, 2.0, 3.0]))
Factory._registry["vime_ipc"]().memory = lambda ordinal: FakeMemory(node, ["GPU-6", "GPU-7"], 1)
loaded = []
receiver = Factory.create_engine(
    SimpleNamespace(backend="vime_ipc"),
    SimpleNamespace(model_config=None, parallel_config=None),
    torch.device("cpu"),
    SimpleNamespace(load_weights=loaded.extend),
)
receiver.init_transfer_engine(receiver.parse_init_info({"devices": ["GPU-5", "GPU-7"]}))
update = device_update_json(0, {"GPU-7": bucket.segment.handle()}, bucket.records)
receiver.receive_weights(receiver.parse_update_info(update))
receiver.shutdown()
bucket.segment.close()
memory.collect()
print("loaded", loaded)
print("left", allocations(node))
"""
"""vLLM's own code parses what the trainer sends, and gives it to the receiver, short of a model."""
HEAVY = {"torch", "ray", "vllm", "vllm_router", "aiohttp", "transformers"}


def _run(program):
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_hooks_import_nothing_heavy():
    loaded = _run(
        "import sys; from vime_vllm import hooks; hooks.vime_rollout_backends(); hooks.vime_sync_strategies(); "
        "print(*sys.modules)"
    )
    assert not HEAVY & set(loaded.split())


def test_entries_name_what_can_be_loaded():
    from vime_vllm import hooks
    from vime_vllm.backend import VllmBackend
    from vime_vllm.sync.ipc import IpcSync
    from vime_vllm.sync.nccl import NcclSync
    from vime_vllm.sync.shm import ShmSync

    [backend], [sync, ipc, nccl] = hooks.vime_rollout_backends(), hooks.vime_sync_strategies()
    assert (backend.name, backend.load()) == ("vllm", VllmBackend)
    assert (sync.name, sync.load()) == ("shm", ShmSync)
    assert (ipc.name, ipc.load(), ipc.config().name) == ("ipc", IpcSync, "ipc")
    assert (nccl.name, nccl.load(), nccl.config().name) == ("nccl", NcclSync, "nccl")
    assert backend.unavailable() is None
    assert sync.rollout_backends == {"vllm"}
    assert backend.config().name == "vllm"
    assert sync.config().name == "shm"


def test_what_is_changed_in_vllm_still_fits_the_installed_one(model_folder):
    """One process for all, as importing vLLM takes most of the time.

    vLLM calls the entry point more than once in some processes, and refuses a second engine of one name.
    `server.fork_cpu_processes` replaces what makes vLLM's CPU platform spawn.
    """
    program = f"""
import os
from importlib.metadata import entry_points
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory as Factory
from vime_vllm.receiver import transfer_engine
[entry] = entry_points(group="vllm.general_plugins", name="vime_vllm")
entry.load()()
entry.load()()
print("receivers", *(Factory._registry[name]().__name__ for name in ("shm", *map(transfer_engine, ("ipc", "nccl")))))

{RECEIVING}
from vime_vllm.server import fork_cpu_processes
from vllm.engine.arg_utils import EngineArgs
fork_cpu_processes()
EngineArgs(model="{model_folder}", skip_tokenizer_init=True, dtype="float32").create_engine_config()
print("method", os.environ["VLLM_WORKER_MULTIPROC_METHOD"])
"""
    printed = _run(program)
    assert "receivers ShmReceiver IpcReceiver NcclReceiver" in printed
    assert "loaded [('w', tensor([1., 2., 3.]))]" in printed
    assert "left []" in printed
    assert "method fork" in printed


def test_a_group_of_trainer_and_engines_needs_devices_for_both():
    from vime_core.plugins.auto import sync_misfit
    from vime_vllm import hooks

    [nccl] = [entry for entry in hooks.vime_sync_strategies() if entry.name == "nccl"]
    run = {"train": "megatron", "rollout": "vllm"}
    for accelerator in ("cpu", "cuda", "rocm"):
        assert sync_misfit(nccl, **run, accelerator=accelerator, placement="disjoint") is None
        assert sync_misfit(nccl, **run, accelerator=accelerator, placement="colocated") == (
            "does not work with placement colocated, only with disjoint "
            "(no two ranks of an NCCL group can be on one device)"
        )
