"""Whether a run fits into memory, asked before anything starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vime_core.errors import ResourceError
from vime_core.planning.memory import plan_memory
from vime_core.planning.request import request_of
from vime_core.plugins.entries import TrainBackendEntry

if TYPE_CHECKING:
    from vime_core.loop.inputs import Inputs


def check_memory(inputs: Inputs) -> None:
    """Refuse what cannot fit, unless `run.check_memory` is off.

    A run that trains nothing is not checked, and neither is one whose processes share the CPUs of several hosts.

    Raises:
        ResourceError: names what does not fit, and how to find what would.
    """
    config, accelerator = inputs.config, inputs.accelerator
    entry = inputs.composed.components["train"].entry
    shared_host = accelerator.ray_resource == "CPU"
    trains = isinstance(entry, TrainBackendEntry) and entry.trains
    if not config.run.check_memory or not trains or (shared_host and config.cluster.address):
        return
    free, total = accelerator.memory()
    request = request_of(
        config,
        inputs.model.geometry,
        inputs.model.tensor_map,
        memory=free if shared_host else total,
        shared_host=shared_host,
        generates=inputs.record is None,
        sync=inputs.composed.components["sync"].entry,
    )
    problems = plan_memory(request).problems
    if problems:
        raise ResourceError(
            f"the run does not fit into memory {'on this host' if shared_host else 'of each device'}: "
            f"{'; '.join(problems)}; vime plan with the same settings shows the parts and what would fit, "
            "run.check_memory=false starts anyway"
        )
