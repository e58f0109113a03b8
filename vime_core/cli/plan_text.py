"""The plan of a run as text."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from vime_core.planning.memory import GIB, gib

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vime_core.accelerators.visible import ChildPlan
    from vime_core.planning.memory import MemoryPlan
    from vime_core.planning.report import Alternative, Report

WIDTH = 150
NOT_SHOWN = "RAY_EXPERIMENTAL_"


def render(found: Report, placed: Sequence[ChildPlan], *, model: str, device: str) -> str:
    """Everything, as a page of text."""
    plan = found.plan
    request = plan.request
    host = "one host" if request.shared_host else f"{request.devices}x {device}"
    engine = request.engine
    share = f", gpu_memory_utilization {engine.utilization:g}" if engine.utilization is not None else ""
    lines = [
        f"model    {model}: {plan.parameters:,} parameters on the fullest trainer rank",
        f"devices  {host}, {gib(request.memory)}{'' if request.shared_host else ' each'}; "
        f"{'colocated' if request.colocated else 'disjoint'}",
        f"trainer  {request.layout.describe()}; {request.dtype}, micro-batches of {request.micro_tokens} tokens",
        f"engines  {engine.engines} of TP{engine.tensor}{share}; sequences of up to {engine.longest} tokens",
        "",
        _phases(plan),
        "",
        *_verdict(found),
    ]
    for title, alternatives in (("with another layout", found.layouts), ("on other devices", found.devices)):
        if alternatives:
            lines += ["", f"{title}:", _alternatives(plan, alternatives)]
    if placed:
        lines += ["", "who sees which devices, its own first:", _placement(placed)]
    return "\n".join(line.rstrip() for line in "\n".join(lines).splitlines())


def _verdict(found: Report) -> list[str]:
    plan = found.plan
    lines = ["it fits" if plan.fits else f"it does not fit: {'; '.join(plan.problems)}"]
    if plan.request.engine.engines:
        lines.append(f"an engine's KV cache holds {plan.sequences} of the longest sequences at one time")
    if plan.utilization_range is not None and plan.request.engine.utilization is not None:
        least, most = plan.utilization_range
        room = f"from {least:.2f} to {most:.2f}" if least <= most else "no value, there is no room beside the trainer"
        lines.append(f"rollout.gpu_memory_utilization could be {room}")
    if found.least is not None:
        lines.append(f"least tensor parallelism that fits on these devices: {found.least.request.layout.describe()}")
    elif plan.fits is False:
        lines.append("no layout fits on these devices with this share of memory for the engines")
    lines += [f"would fit: {item.what}" for item in found.remedies]
    return lines


def _phases(plan: MemoryPlan) -> str:
    names = list(dict.fromkeys(part.name for phase in plan.phases for part in phase.parts))
    table = _table("" if plan.request.shared_host else "on each device", *(phase.name for phase in plan.phases))
    for name in names:
        cells = []
        for phase in plan.phases:
            part = next((part for part in phase.parts if part.name == name), None)
            cells.append("" if part is None else _cell(part.bytes))
        table.add_row(name, *cells)
    table.add_section()
    table.add_row("total", *(_cell(phase.total) for phase in plan.phases))
    notes = [f"  {part.name}: {part.note}" for phase in plan.phases for part in phase.parts if part.note]
    return "\n".join([_text(table), *notes])


def _alternatives(plan: MemoryPlan, alternatives: Sequence[Alternative]) -> str:
    names = [phase.name for phase in plan.phases]
    table = _table("", *names, "sequences", "")
    for what, shown in [("as planned", plan), *((item.what, item.plan) for item in alternatives)]:
        totals = [_cell(phase.total) for phase in shown.phases]
        verdict = "fits" if shown.fits else f"does not fit into {gib(shown.request.memory)}"
        table.add_row(what, *totals, str(shown.sequences), verdict)
    return _text(table)


def _placement(placed: Sequence[ChildPlan]) -> str:
    masks = [name for name in placed[0].environment if not name.startswith(NOT_SHOWN)]
    table = _table("process", "node", *masks, numbers=False)
    for child in placed:
        table.add_row(child.process, child.node, *(child.environment[name] for name in masks))
    return _text(table)


def _cell(count: int) -> str:
    return f"{count / GIB:.2f} GiB"


def _table(first: str, *others: str, numbers: bool = True) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column(first, no_wrap=True)
    for heading in others:
        table.add_column(heading, justify="right" if numbers else "left", no_wrap=True)
    return table


def _text(table: Table) -> str:
    output = io.StringIO()
    Console(file=output, width=WIDTH, color_system=None).print(table)
    return output.getvalue().rstrip("\n")
