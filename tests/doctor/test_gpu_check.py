"""What `benchmarks/gpu_check.py` does without a device: it runs what it can and says why it skips the rest."""

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from examples.quickstart.make_assets import make_assets
from examples.quickstart.warmup import WarmUp

ROOT = Path(__file__).resolve().parents[2]
HAS_DEVICE = Path("/dev/kfd").exists() or Path("/proc/driver/nvidia").exists()


def check(tmp_path, *arguments, deadline=240):
    output = tmp_path / "check.json"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu_check", "--output", str(output), *arguments],
        cwd=ROOT,
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=deadline,
    )
    return done, {part["part"]: part for part in json.loads(output.read_text())["parts"]}


@pytest.mark.skipif(HAS_DEVICE, reason="there is a device here")
def test_parts_that_need_a_device_say_so(tmp_path):
    done, parts = check(tmp_path, "--parts", "ipc,training")
    assert done.returncode == 0, done.stderr
    assert parts["ipc"]["status"] == parts["training"]["status"] == "skipped"
    assert parts["ipc"]["detail"] == "no CUDA or HIP device here"
    assert "ipc       skipped" in done.stdout


@pytest.mark.full
@pytest.mark.skipif(HAS_DEVICE, reason="there is a device here")
@pytest.mark.timeout(600)
def test_the_training_part_on_the_cpu(tmp_path):
    make_assets(tmp_path / "assets", 0, WarmUp(steps=3, batch=8, report_every=3))
    assets = ("--assets", str(tmp_path / "assets"))
    done, parts = check(tmp_path, "--parts", "training", "--on-cpu", "--steps", "1", *assets, deadline=500)
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert parts["training"]["numbers"]["logprob_abs_diff"] < 1e-4


def test_every_accelerator_with_device_memory_is_one_that_can_be_checked():
    from benchmarks.gpu_ipc import MEMORY
    from vime_core.plugins.manager import load_plugins

    devices = {name for name in load_plugins().entries("accelerator") if name != "cpu"}
    assert devices == set(MEMORY)
    for module, name in MEMORY.values():
        assert hasattr(import_module(module), name)
