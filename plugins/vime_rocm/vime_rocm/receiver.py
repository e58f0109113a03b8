"""The entry point of group `vllm.general_plugins`: what receives weights of `rocm_ipc` inside vLLM.

vLLM calls it in every one of its processes, in some more than once.
"""

from __future__ import annotations


def register() -> None:
    """Register the receiver if it is not registered yet; its module is imported when it is used."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory as Factory

    if "rocm_ipc" not in Factory._registry:
        Factory.register_engine("rocm_ipc", "vime_rocm.ipc_receiver", "RocmIpcReceiver")
