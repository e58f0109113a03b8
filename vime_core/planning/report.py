"""A plan beside what would change with other layouts and devices."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from vime_core.planning.devices import KNOWN
from vime_core.planning.layout import even_stages
from vime_core.planning.memory import plan_memory
from vime_core.planning.search import candidates, search, search_more_devices, search_share

if TYPE_CHECKING:
    from vime_core.planning.memory import MemoryPlan, Request


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another plan of the same run."""

    what: str
    plan: MemoryPlan


@dataclass(frozen=True, slots=True)
class Report:
    """All that `vime plan` tells about memory."""

    plan: MemoryPlan
    least: MemoryPlan | None
    """The fitting plan with least tensor parallelism on these devices."""
    remedies: tuple[Alternative, ...]
    """What would fit, where the plan does not."""
    layouts: tuple[Alternative, ...]
    """The same devices with other tensor parallelism."""
    devices: tuple[Alternative, ...]
    """The same layout on other devices."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            **_plain(self.plan),
            "least_tensor_parallel": None if self.least is None else _plain(self.least),
            "remedies": [{"what": item.what, **_plain(item.plan)} for item in self.remedies],
            "other_layouts": [{"what": item.what, **_plain(item.plan)} for item in self.layouts],
            "other_devices": [{"what": item.what, **_plain(item.plan)} for item in self.devices],
        }


def report(plan: MemoryPlan) -> Report:
    """Look around a plan."""
    request = plan.request
    if request.shared_host:
        return Report(plan, search(request), (), (), ())
    return Report(
        plan=plan,
        least=search(request),
        remedies=() if plan.fits else _remedies(request),
        layouts=_other_layouts(request),
        devices=tuple(
            Alternative(f"{request.devices}x {device.title}", plan_memory(replace(request, memory=device.memory)))
            for device in KNOWN.values()
            if device.memory != request.memory
        ),
    )


def _other_layouts(request: Request) -> tuple[Alternative, ...]:
    """Every other tensor parallelism, all else the same where that can be."""
    sizes = sorted({layout.tensor for layout in candidates(request)} - {request.layout.tensor})
    found = []
    for size in sizes:
        layout = replace(request.layout, tensor=size, sequence=size > 1)
        if layout.world_size % (size * layout.pipeline):
            layout = replace(layout, stage_layers=even_stages(request.geometry.num_layers, 1))
        found.append(Alternative(layout.describe(), plan_memory(replace(request, layout=layout))))
    return tuple(found)


def _remedies(request: Request) -> tuple[Alternative, ...]:
    found = []
    here, share, more = search(request), search_share(request), search_more_devices(request)
    if share is not None:
        found.append(Alternative(f"rollout.gpu_memory_utilization={share.request.engine.utilization:g}", share))
    if here is not None:
        found.append(Alternative(f"on the same devices {here.request.layout.describe()}", here))
    if more is not None:
        layout, engine = more.request.layout.describe(), more.request.engine
        told = f"{more.request.devices} devices: {layout}, {engine.engines} engines of TP{engine.tensor}"
        found.append(Alternative(told, more))
    found += [
        Alternative(f"{request.devices}x {device.title}", plan)
        for device in KNOWN.values()
        if (plan := plan_memory(replace(request, memory=device.memory))).fits
    ]
    return tuple(found)


def _plain(plan: MemoryPlan) -> dict[str, Any]:
    request = plan.request
    return {
        "fits": plan.fits,
        "problems": list(plan.problems),
        "devices": request.devices,
        "memory": request.memory,
        "layout": {**asdict(request.layout), "description": request.layout.describe()},
        "engine": asdict(request.engine),
        "parameters": plan.parameters,
        "phases": [{**asdict(phase), "total": phase.total} for phase in plan.phases],
        "sequences": plan.sequences,
        "utilization_range": plan.utilization_range,
    }
