"""Check vime on a GPU node, ROCm or CUDA: `python -m benchmarks.gpu_check --output check.json`.

Runs each part that a CPU cannot prove (docs/reference/gpu-only.md) and says what it found; a part that cannot run here
says why. Needs a clone with the quickstart's assets (`python -m examples.quickstart.make_assets`), and under ten
minutes. The exit status is 1 when a part fails.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.gpu_forward import FAMILIES, ForwardFault, forward, write
from benchmarks.gpu_group import broadcast
from benchmarks.gpu_ipc import exchange
from vime_core.config.schema import AcceleratorConfig
from vime_core.doctor.checks import check_node
from vime_core.errors import PluginError
from vime_core.plugins.auto import choose_accelerator
from vime_core.plugins.manager import load_plugins

if TYPE_CHECKING:
    from collections.abc import Callable

    from vime_core.plugins.interfaces import Accelerator

ROOT = Path(__file__).resolve().parents[1]
ASSETS = ROOT / "examples" / "quickstart" / "assets"
TRAIN_DEADLINE_S = 480.0
LARGEST_DIFFERENCE = {"bfloat16": 0.1, "float32": 1e-4}
"""Of a token's log-prob between trainer and engine, mean over samples."""
FORWARD_BOUNDS = {"float32": 1e-4, "bfloat16": 0.05}
"""Of a token's log-prob between Megatron on a device and transformers in float32 on the CPU: the largest difference in
float32, where only the order of sums differs; the mean in bfloat16, where a router may choose another expert."""


@dataclass(frozen=True, slots=True)
class Result:
    """What one part found."""

    part: str
    status: str
    """passed, failed or skipped"""
    detail: str
    seconds: float
    numbers: dict[str, Any]


class Skipped(Exception):
    """A part cannot run here; the message says why."""


class Failed(Exception):
    """A part found something wrong."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What the parts work with."""

    accelerator: Accelerator
    devices: int
    steps: int
    on_cpu: bool
    assets: Path


def main() -> int:
    """Run the parts and print them."""
    parser = argparse.ArgumentParser(description="Check vime on the devices of this node.")
    parser.add_argument("--parts", default=",".join(PARTS), help="which, separated by commas (default %(default)s)")
    parser.add_argument("--steps", type=int, default=3, help="training steps")
    parser.add_argument("--on-cpu", action="store_true", help="compute on the CPU where there is no device")
    parser.add_argument("--assets", type=Path, default=ASSETS, help="the quickstart's model and problems")
    parser.add_argument("--output", type=Path, help="write the results as JSON here")
    options = parser.parse_args()
    setting = _setting(options.steps, options.on_cpu, options.assets)
    results = [run_part(name, PARTS[name], setting) for name in options.parts.split(",")]
    print(f"accelerator {setting.accelerator.name}, {setting.devices} devices")
    for result in results:
        print(f"{result.part:<8}  {result.status:<7}  {result.seconds:6.1f} s  {result.detail}")
    if options.output is not None:
        content = {"accelerator": setting.accelerator.name, "devices": setting.devices}
        options.output.write_text(json.dumps({**content, "parts": [asdict(item) for item in results]}, indent=2))
    return int(any(result.status == "failed" for result in results))


def run_part(name: str, part: Callable[[Setting], tuple[str, dict[str, Any]]], setting: Setting) -> Result:
    """Run one part; what it raises is its result, so that the others run too."""
    start = time.monotonic()
    try:
        (detail, numbers), status = part(setting), "passed"
    except Skipped as reason:
        detail, numbers, status = str(reason), {}, "skipped"
    except (Failed, ForwardFault, subprocess.SubprocessError, OSError) as error:
        detail, numbers, status = str(error), {}, "failed"
    return Result(name, status, detail, time.monotonic() - start, numbers)


def _setting(steps: int, on_cpu: bool, assets: Path) -> Setting:
    plugins = load_plugins()
    try:
        chosen = choose_accelerator(plugins)
    except PluginError as error:
        raise SystemExit(str(error)) from error
    accelerator: Accelerator = chosen.build(AcceleratorConfig(name=chosen.entry.name))
    devices = accelerator.device_count() if accelerator.ray_resource == "GPU" else 0
    return Setting(accelerator, devices, steps, on_cpu, assets.resolve())


def doctor(setting: Setting) -> tuple[str, dict[str, Any]]:
    """`vime doctor` finds no problem."""
    findings = check_node(load_plugins())
    problems = [finding for finding in findings if finding.status == "problem"]
    if problems:
        raise Failed("; ".join(f"{item.check}: {item.detail} -> {item.remedy}" for item in problems))
    warnings = [f"{item.check}: {item.detail}" for item in findings if item.status == "warning"]
    return "; ".join(warnings) or "nothing to complain of", {"findings": [asdict(item) for item in findings]}


def ipc(setting: Setting) -> tuple[str, dict[str, Any]]:
    """A buffer of one process is read by another through a device IPC handle, with the masks of a run."""
    if not setting.devices:
        raise Skipped("no CUDA or HIP device here")
    pairs = [(0, 0)] + ([(1, 0), (0, 1)] if setting.devices > 1 else [])
    for exporter, importer in pairs:
        fault = exchange(setting.accelerator, exporter, importer)
        if fault is not None:
            raise Failed(f"from device {exporter} into a process on device {importer}: {fault}")
    one = "; one device only, no handle crossed devices" if setting.devices == 1 else ""
    return f"{len(pairs)} exchanges{one}", {"pairs": pairs}


def group(setting: Setting) -> tuple[str, dict[str, Any]]:
    """Bytes of one process reach another through a process group, with the masks of a run, in either direction."""
    if setting.devices < 2 and not (setting.on_cpu and not setting.devices):
        raise Skipped(f"needs two devices, and there {'is one' if setting.devices else 'is none'} here")
    pairs = [(0, 1), (1, 0)] if setting.devices else [(0, 0)]
    for sender, receiver in pairs:
        fault = broadcast(setting.accelerator, sender, receiver)
        if fault is not None:
            raise Failed(f"from device {sender} to device {receiver}: {fault}")
    told = f"{len(pairs)} broadcasts over {setting.accelerator.torch_backend}"
    return told, {"pairs": pairs}


def megatron_forward(setting: Setting) -> tuple[str, dict[str, Any]]:
    """Log-probs of tiny random models, dense and with experts, through Megatron on the device and in transformers."""
    if not setting.devices and not setting.on_cpu:
        raise Skipped("no CUDA or HIP device here; --on-cpu computes on the CPU")
    numbers: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for family in FAMILIES:
            path = Path(folder) / family
            expected = write(family, path)
            for dtype in FORWARD_BOUNDS:
                found = forward(setting.accelerator, dtype, family, path)
                numbers[f"{family}, {dtype}"] = _difference(expected, found, dtype)
    beyond = [what for what, numbers_of in numbers.items() if not numbers_of["difference"] <= numbers_of["bound"]]
    told = "; ".join(f"{what}: {found['difference']:.2g} of {found['bound']:g}" for what, found in numbers.items())
    if beyond:
        raise Failed(f"log-probs differ by more than they may in {', '.join(beyond)} ({told})")
    return f"log-prob differences {told}", numbers


def _difference(expected: list[float], found: list[float], dtype: str) -> dict[str, float]:
    """Differences of log-probs, and the one that is bounded; nan where one of them is."""
    if len(found) != len(expected):
        raise Failed(f"{len(found)} log-probs came, not {len(expected)}")
    differences = [abs(one - other) for one, other in zip(expected, found, strict=True)]
    mean = math.fsum(differences) / len(differences)
    largest = math.nan if math.isnan(mean) else max(differences)
    bounded = largest if dtype == "float32" else mean
    return {"difference": bounded, "bound": FORWARD_BOUNDS[dtype], "largest": largest, "mean": mean}


def training(setting: Setting) -> tuple[str, dict[str, Any]]:
    """A few steps of the quickstart: weights pushed, log-probs of trainer and engine agree, tokens a second."""
    if not setting.devices and not setting.on_cpu:
        raise Skipped("no CUDA or HIP device here; --on-cpu trains on the CPU")
    if not setting.assets.is_dir():
        raise Skipped("the quickstart's assets are missing: python -m examples.quickstart.make_assets makes them")
    dtype = "bfloat16" if setting.devices else "float32"
    with tempfile.TemporaryDirectory() as folder:
        _train(setting, dtype, folder)
        [file] = Path(folder).rglob("metrics.jsonl")
        rows = [json.loads(line) for line in file.read_text().splitlines()]
    steps = [row for row in rows if "train/train_rollout_logprob_abs_diff" in row]
    if len(steps) != setting.steps:
        raise Failed(f"{len(steps)} of {setting.steps} steps left metrics")
    difference = max(row["train/train_rollout_logprob_abs_diff"] for row in steps)
    if difference > LARGEST_DIFFERENCE[dtype]:
        raise Failed(f"log-probs of trainer and engine differ by {difference:.2g} in {dtype}")
    speed = steps[-1]["perf/tokens_per_gpu_per_second"]
    numbers = {"logprob_abs_diff": difference, "tokens_per_gpu_per_second": speed, "dtype": dtype, "steps": steps}
    return f"{len(steps)} steps, log-prob difference {difference:.2g} ({dtype}), {speed:.0f} tokens/s a device", numbers


def _train(setting: Setting, dtype: str, folder: str) -> None:
    settings = [
        "experiment=quickstart",
        f"model.path={setting.assets / 'model'}",
        f"data.train={setting.assets / 'train.parquet'}",
        f"accelerator={setting.accelerator.name}",
        f"train.dtype={dtype}",
        f"train.steps={setting.steps}",
        "rollout.num_engines=1",
        "eval.every=0",
        f"run.root={folder}",
    ]
    if setting.devices:
        # Trainer and engine share the device.
        settings.append("rollout.gpu_memory_utilization=0.4")
    done = subprocess.run(
        [sys.executable, "-m", "vime_core.cli", "train", *settings],
        cwd=ROOT,
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=TRAIN_DEADLINE_S,
        check=False,
    )
    if done.returncode:
        last = [line for line in done.stderr.splitlines() if line.strip()][-1:]
        raise Failed(f"vime train ended with status {done.returncode}: {' '.join(last)}")


PARTS: dict[str, Callable[[Setting], tuple[str, dict[str, Any]]]] = {
    "doctor": doctor,
    "ipc": ipc,
    "group": group,
    "forward": megatron_forward,
    "training": training,
}
"""In this order: each needs what the ones before it check."""


if __name__ == "__main__":
    raise SystemExit(main())
