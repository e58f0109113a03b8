"""The entry point of group `vllm.general_plugins`: gives vLLM vime's weight-transfer engines, and names its segments.

vLLM calls it in every one of its processes, in some more than once.
"""

from __future__ import annotations

from vime_vllm.leftovers import name_segments

RECEIVERS = {
    "shm": ("vime_vllm.sync.shm_receiver", "ShmReceiver"),
    "vime_ipc": ("vime_vllm.sync.ipc_receiver", "IpcReceiver"),
    "vime_nccl": ("vime_vllm.sync.nccl_receiver", "NcclReceiver"),
}
"""vLLM's name of a weight-transfer engine -> its module and class."""
RENAMED = {"ipc": "vime_ipc", "nccl": "vime_nccl"}
"""Sync strategy -> vLLM's name of what receives its weights, where vLLM has an engine of the strategy's name."""


def transfer_engine(sync: str) -> str:
    """vLLM's name of the weight-transfer engine that receives what a sync strategy sends."""
    return RENAMED.get(sync, sync)


def meets_trainer(sync: str) -> bool:
    """Whether engines are in a process group with the trainer."""
    return transfer_engine(sync) == "vime_nccl"


def register() -> None:
    """Register every receiver that is not registered yet; their modules are imported when one is used."""
    name_segments()
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory as Factory

    for name, (module, attribute) in RECEIVERS.items():
        if name not in Factory._registry:
            Factory.register_engine(name, module, attribute)
