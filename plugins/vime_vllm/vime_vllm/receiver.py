"""The entry point of group `vllm.general_plugins`: gives vLLM vime's weight-transfer engines, and names its segments.

vLLM calls it in every one of its processes, in some more than once.
"""

from __future__ import annotations

from vime_vllm.leftovers import name_segments

RECEIVERS = {"shm": ("vime_vllm.sync.shm_receiver", "ShmReceiver")}
"""Name of the sync strategy -> module and class of what receives its weights inside vLLM."""


def register() -> None:
    """Register every receiver that is not registered yet; their modules are imported when one is used."""
    name_segments()
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory as Factory

    for name, (module, attribute) in RECEIVERS.items():
        if name not in Factory._registry:
            Factory.register_engine(name, module, attribute)
