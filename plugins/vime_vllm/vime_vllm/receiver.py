"""The entry point of group `vllm.general_plugins`: makes vLLM know vime's weight-transfer engines.

vLLM calls it in every one of its processes, in some more than once.
"""

from __future__ import annotations

RECEIVERS = {"shm": ("vime_vllm.sync.shm_receiver", "ShmReceiver")}
"""Name of the sync strategy -> module and class of what receives its weights inside vLLM."""


def register() -> None:
    """Register every receiver that is not registered yet; their modules are imported when one is used."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory as Factory

    for name, (module, attribute) in RECEIVERS.items():
        if name not in Factory._registry:
            Factory.register_engine(name, module, attribute)
