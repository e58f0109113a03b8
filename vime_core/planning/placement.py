"""Which devices each process would get, and what it would find in its environment."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from vime_core.accelerators.visible import NodeDevices, Pools, plan_children

if TYPE_CHECKING:
    from vime_core.accelerators.cuda import CudaAccelerator
    from vime_core.accelerators.visible import ChildPlan
    from vime_core.planning.memory import Request

DEVICES_A_NODE = 8


def place(request: Request, accelerator: CudaAccelerator) -> list[ChildPlan]:
    """The visible-device plan of a run: with the masks of this shell, on nodes of eight devices where there are none.

    Raises:
        ResourceError: when a mask is wrong or leaves too few devices.
    """
    here = accelerator.offered(os.environ)
    pools = Pools(
        ranks=request.layout.world_size,
        engines=request.engine.engines,
        engine_devices=request.engine.tensor,
        colocated=request.colocated,
    )
    nodes = [here] if here.entries else _nodes(request.devices)
    return plan_children(pools, nodes, accelerator.visibility)


def _nodes(devices: int) -> list[NodeDevices]:
    count = -(-devices // DEVICES_A_NODE)
    each = min(devices, DEVICES_A_NODE)
    return [NodeDevices(f"node{node}", tuple(str(index) for index in range(each)), {}) for node in range(count)]
