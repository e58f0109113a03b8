"""Layouts that would fit, from the least tensor parallelism on."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from vime_core.models.layout import even_stages
from vime_core.planning.layout import RECOMPUTE, TrainLayout
from vime_core.planning.memory import plan_memory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vime_core.planning.memory import MemoryPlan, Request

MOST_DEVICES = 128
SHARE_STEP = 0.05


def search(request: Request) -> MemoryPlan | None:
    """The fitting plan on the request's devices with the least tensor, then pipeline parallelism and recomputation."""
    for layout in candidates(request):
        for engine_tensor in _engine_sizes(request):
            engine = replace(
                request.engine,
                tensor=engine_tensor,
                engines=max(1, request.engine.engines * request.engine.tensor // engine_tensor),
            )
            plan = plan_memory(replace(request, layout=layout, engine=engine))
            if plan.fits:
                return plan
    return None


def search_more_devices(request: Request) -> MemoryPlan | None:
    """The fitting plan on the fewest devices of that kind, above those of the request: twice as many, and so on."""
    devices = request.devices * 2
    while devices <= MOST_DEVICES:
        grown = grow(request, devices)
        plan = search(grown)
        if plan is not None:
            return plan
        devices *= 2
    return None


def grow(request: Request, devices: int) -> Request:
    """The same run on more devices: ranks and engines grow alike."""
    factor = devices // request.devices
    return replace(
        request,
        devices=devices,
        layout=replace(request.layout, world_size=request.layout.world_size * factor),
        engine=replace(request.engine, engines=request.engine.engines * factor),
    )


def search_share(request: Request) -> MemoryPlan | None:
    """A plan that fits with less memory for the engines: of the layout as it is, else with least tensor parallelism."""
    asked = request.engine.utilization
    if asked is None:
        return None
    for layout in (request.layout, *candidates(request)):
        room = plan_memory(replace(request, layout=layout)).utilization_range
        share = math.floor(room[1] / SHARE_STEP) * SHARE_STEP if room else 0.0
        if 0.0 < share < asked:
            engine = replace(request.engine, utilization=round(share, 2))
            plan = plan_memory(replace(request, layout=layout, engine=engine))
            if plan.fits:
                return plan
    return None


def candidates(request: Request) -> Iterator[TrainLayout]:
    """Layouts of the request's ranks, from the least tensor parallelism on."""
    geometry, ranks = request.geometry, request.layout.world_size
    for tensor in _divisors(ranks):
        if any(size % tensor for size in (geometry.num_heads, geometry.num_kv_heads, geometry.ffn_size)):
            continue
        for pipeline in _divisors(ranks // tensor):
            if pipeline > geometry.num_layers:
                continue
            for recompute in RECOMPUTE:
                yield TrainLayout(
                    world_size=ranks,
                    tensor=tensor,
                    sequence=tensor > 1,
                    stage_layers=even_stages(geometry.num_layers, pipeline),
                    expert=_expert_ranks(request, pipeline),
                    recompute=recompute,
                    grouped_experts=request.layout.grouped_experts,
                )


def _expert_ranks(request: Request, pipeline: int) -> int:
    """As many ranks as there are in a stage share the experts out, as far as their number divides."""
    experts = request.geometry.experts
    if experts is None:
        return 1
    return max(n for n in _divisors(request.layout.world_size // pipeline) if experts.num_experts % n == 0)


def _engine_sizes(request: Request) -> list[int]:
    """Devices of one engine: as asked for, then fewer."""
    asked, heads = request.engine.tensor, request.geometry.num_heads
    total = max(1, request.engine.engines) * asked
    others = [size for size in _divisors(total) if heads % size == 0 and size != asked]
    return [asked, *sorted(others)]


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]
