"""`vime plan`: memory and placement of a run, before it costs anything."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vime_core.accelerators.cuda import CudaAccelerator
from vime_core.cli.parser import Parser, add_overrides, warn
from vime_core.cli.plan_text import render
from vime_core.config.compose import compose
from vime_core.config.location import conf_folder
from vime_core.config.validate import families
from vime_core.errors import ModelError, ResourceError
from vime_core.models.hf import read_architecture
from vime_core.planning.devices import KNOWN
from vime_core.planning.memory import plan_memory
from vime_core.planning.placement import place
from vime_core.planning.report import report
from vime_core.planning.request import request_of
from vime_core.plugins.auto import has_engines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vime_core.accelerators.visible import ChildPlan
    from vime_core.config.composed import ComposedConfig
    from vime_core.config.schema import Config
    from vime_core.models.hf import Architecture
    from vime_core.planning.memory import Request

DESCRIPTION = """Estimate what a run needs on each device, and say whether it fits; nothing is started.

The model folder needs its config.json only; for the models that vime's experiments name not even that. The exit status
is 1 when the run does not fit.

examples:
  vime plan experiment=qwen3_8b_dapo_mi355x
  vime plan experiment=qwen3_8b_dapo_mi355x --device h100
  vime plan model.path=/models/Qwen3-8B hardware=mi300x train.world_size=8 rollout.num_engines=4
"""


def run(arguments: Sequence[str], *, show_traceback: bool) -> int:
    """Print the plan; returns 0 when the run fits, else 1."""
    parser = Parser("plan", DESCRIPTION)
    add_overrides(parser)
    parser.add_argument("--device", choices=list(KNOWN), help="plan for this kind of device")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_intermixed_args(arguments)
    composed = _compose(options.overrides, options.config, options.config_dir)
    warn(composed.plugins)
    config = composed.config
    model, source = _architecture(composed)
    request, title = _request(composed, model, options.device)
    found = report(plan_memory(request))
    placed = _placement(composed, request, options.device)
    if options.json:
        content = {
            "model": str(source),
            "device": title,
            "layout": asdict(request.layout),
            **found.as_dict(),
            "placement": [asdict(child) for child in placed],
        }
        print(json.dumps(content, indent=2))
    else:
        print(render(found, placed, model=_describe(config, model, source), device=title))
    return 0 if found.plan.fits else 1


def _compose(overrides: Sequence[str], config_file: Path | None, config_folder: Path | None) -> ComposedConfig:
    """Compose for planning: components need not be usable here, and what is not planned with need not be given."""
    settings: dict[str, Any] = {
        "config_file": config_file,
        "config_folder": config_folder,
        "require_available": False,
    }
    composed = compose(overrides, **settings)
    unread = [key for key in composed.missing if key != "model.path"]
    return compose([*overrides, *(f"{key}=unset" for key in unread)], **settings) if unread else composed


def _architecture(composed: ComposedConfig) -> tuple[Architecture, Path]:
    config = composed.config
    folder = Path(config.model.path)
    shipped = conf_folder() / "models" / folder.name
    if not (folder / "config.json").is_file():
        if not (shipped / "config.json").is_file():
            known = ", ".join(sorted(item.name for item in (conf_folder() / "models").iterdir() if item.is_dir()))
            raise ModelError(
                f"model.path={folder} has no config.json; give a model folder, or a name that vime knows: {known}"
            )
        folder = shipped
    return read_architecture(folder, families(composed), config.model.name), folder


def _request(composed: ComposedConfig, model: Architecture, device: str | None) -> tuple[Request, str]:
    """What is planned, and for which device."""
    config = composed.config
    accelerator = composed.components["accelerator"].build(config.accelerator)
    name = device or config.accelerator.device
    shared_host = accelerator.ray_resource == "CPU" and device is None
    if shared_host:
        memory, title = accelerator.memory()[0], "the memory that is free on this host"
    elif name is not None:
        memory, title = KNOWN[name].memory, KNOWN[name].title
    elif (reason := accelerator.available()) is None:
        memory, title = accelerator.memory()[1], f"the {accelerator.name} device that is here"
    else:
        raise ResourceError(f"{reason}; say which device to plan for with --device {' or '.join(KNOWN)}")
    request = request_of(
        config,
        model.geometry,
        model.tensor_map,
        memory=memory,
        shared_host=shared_host,
        generates=has_engines(composed.components["rollout"].entry),
        sync=composed.components["sync"].entry,
    )
    return request, title


def _placement(composed: ComposedConfig, request: Request, device: str | None) -> list[ChildPlan]:
    """None on the CPU, and for a device that is not of the run's accelerator."""
    accelerator = composed.components["accelerator"].build(composed.config.accelerator)
    if not isinstance(accelerator, CudaAccelerator):
        return []
    if device is not None and KNOWN[device].accelerator != accelerator.name:
        return []
    return place(request, accelerator)


def _describe(config: Config, model: Architecture, source: Path) -> str:
    given = Path(config.model.path)
    where = f"{given}" if source == given else f"{given} is not here: the published configuration of {source.name}"
    return f"{model.family_name}, {where}"
