"""`rocm_ipc`: what it adds to `ipc`, and when `sync=auto` takes it."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from vime_core.accelerators.device_memory import CudaMemory, handle_to_json
from vime_core.plugins.auto import choose_sync
from vime_core.plugins.manager import load_plugins
from vime_rocm.memory import RocmMemory

HANDLE = handle_to_json((3, b"memory", 4096, 512, b"/counter", 7, b"event", True))


@pytest.mark.parametrize(
    ("accelerator", "placement", "chosen"),
    [
        ("rocm", "colocated", "rocm_ipc"),
        ("cuda", "colocated", "ipc"),
        ("cpu", "colocated", "shm"),
        ("rocm", "disjoint", "shm"),
        ("cuda", "disjoint", "shm"),
    ],
)
def test_auto_takes_device_memory_where_ranks_and_engines_share_devices(accelerator, placement, chosen):
    found = choose_sync(load_plugins(), train="megatron", rollout="vllm", accelerator=accelerator, placement=placement)
    assert found.entry.name == chosen


def test_a_handle_is_opened_only_where_the_exporters_ordinal_exists(monkeypatch):
    monkeypatch.setattr(CudaMemory, "open", lambda self, handle: "opened")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    with pytest.raises(ValueError, match=r"^the handle is of device 3 .* sees 3: let HIP_VISIBLE_DEVICES of"):
        RocmMemory(0).open(HANDLE)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert RocmMemory(0).open(HANDLE) == "opened"


@pytest.mark.parametrize(("value", "told"), [("1", "unset HSA_ENABLE_IPC_MODE_LEGACY"), ("0", "hipErrorInvalidValue$")])
def test_an_export_that_fails_names_the_variable_that_is_known_for_it(monkeypatch, value, told):
    def fail(self, memory):
        raise RuntimeError("hipErrorInvalidValue")

    monkeypatch.setattr(CudaMemory, "export", fail)
    monkeypatch.setenv("HSA_ENABLE_IPC_MODE_LEGACY", value)
    with pytest.raises(RuntimeError, match=told):
        RocmMemory(0).export(torch.zeros(1))


def test_vllm_finds_the_receiver():
    """In a process of its own, as importing vLLM takes long and leaves traces; vLLM calls the entry point twice."""
    program = """
from importlib.metadata import entry_points
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory as Factory
[entry] = entry_points(group="vllm.general_plugins", name="vime_rocm")
entry.load()()
entry.load()()
found = Factory._registry["rocm_ipc"]()
print(found.__name__, found.memory.__name__)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=False)
    assert done.stdout.strip().endswith("RocmIpcReceiver RocmMemory"), done.stderr
