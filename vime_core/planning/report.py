"""A plan beside what would change with other layouts and devices."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from vime_core.models.layout import even_stages
from vime_core.planning.devices import KNOWN
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
    """Other settings on the same devices, more devices only where none do, and other devices."""
    share, here = search_share(request), search(request)
    more = search_more_devices(request) if share is None and here is None else None
    found = [Alternative(_settings(request, plan.request), plan) for plan in (share, here, more) if plan is not None]
    others = [
        Alternative(f"{request.devices}x {device.title}", plan_memory(replace(request, memory=device.memory)))
        for device in KNOWN.values()
    ]
    return (*found, *(item for item in others if item.plan.fits))


def _settings(before: Request, after: Request) -> str:
    """What to set to get from one request to another."""

    def keys(request: Request) -> dict[str, Any]:
        layout, engine = request.layout, request.engine
        return {
            "train.world_size": layout.world_size,
            "train.tensor_parallel": layout.tensor,
            "train.pipeline_parallel": layout.pipeline,
            "train.expert_parallel": layout.expert,
            "train.expert_tensor_parallel": layout.expert_tensor,
            "train.recompute": layout.recompute,
            "rollout.num_engines": engine.engines,
            "rollout.tensor_parallel_size": engine.tensor,
            "rollout.gpu_memory_utilization": engine.utilization,
        }

    given = keys(before)
    changed = [f"{key}={value}" for key, value in keys(after).items() if value != given[key]]
    return f"{' '.join(changed)} ({after.devices} devices)"


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
