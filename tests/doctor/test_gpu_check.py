"""What `benchmarks/gpu_check.py` does without a device: it runs what it can and says why it skips the rest."""

import json
import math
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from benchmarks import gpu_check
from benchmarks.gpu_check import FORWARD_BOUNDS
from benchmarks.gpu_forward import ForwardFault
from benchmarks.gpu_pair import run_pair
from examples.quickstart.make_assets import make_assets
from examples.quickstart.warmup import WarmUp
from vime_core.accelerators.cpu import CpuAccelerator
from vime_core.config.schema import AcceleratorConfig

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
    done, parts = check(tmp_path, "--parts", "ipc,group,forward,training")
    assert done.returncode == 0, done.stderr
    assert {part["status"] for part in parts.values()} == {"skipped"}
    assert parts["group"]["detail"] == "needs two devices, and there is none here"
    assert parts["forward"]["detail"] == "no CUDA or HIP device here; --on-cpu computes on the CPU"
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


@pytest.mark.full
@pytest.mark.skipif(HAS_DEVICE, reason="there is a device here")
@pytest.mark.timeout(600)
def test_the_forward_part_on_the_cpu(tmp_path):
    done, parts = check(tmp_path, "--parts", "forward", "--on-cpu", deadline=500)
    assert done.returncode == 0, (done.stdout, done.stderr)
    numbers = parts["forward"]["numbers"]
    assert set(numbers) == {f"{family}, {dtype}" for family in ("qwen3", "qwen3_moe") for dtype in FORWARD_BOUNDS}
    for what, found in numbers.items():
        # Not equal to the last bit: the two really computed apart.
        assert 0 < found["difference"] < found["bound"], what


@pytest.mark.skipif(HAS_DEVICE, reason="there is a device here")
def test_the_group_part_on_the_cpu(tmp_path):
    done, parts = check(tmp_path, "--parts", "group", "--on-cpu")
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert parts["group"]["detail"] == "1 broadcasts over gloo"


@pytest.mark.parametrize(
    ("giver", "taker", "told"),
    [
        ("print('line', flush=True); sys.stdin.read()", "print('equal' if input() == 'line' else 'other')", None),
        ("print('line', flush=True); sys.stdin.read()", "print('the bytes differ')", "the bytes differ"),
        ("print('line', flush=True); sys.stdin.read()", "sys.exit('no driver')", "second: no driver"),
        ("print('line', flush=True); sys.stdin.read()", "time.sleep(600)", "second: no answer within 3 s"),
        ("sys.exit('no device')", "", "first: no device"),
        ("time.sleep(600)", "", "first: no output"),
    ],
    ids=["equal", "differs", "second fails", "second hangs", "first fails", "first hangs"],
)
def test_two_processes_that_exchange_a_line(tmp_path, giver, taker, told):
    program = f"import sys, time\nif sys.argv[1] == 'first':\n    {giver}\nelse:\n    {taker or 'pass'}\n"
    (tmp_path / "exchanging.py").write_text(program)
    accelerator = CpuAccelerator(AcceleratorConfig())
    roles, environment = {"first": 0, "second": 0}, {"PYTHONPATH": str(tmp_path)}
    assert run_pair("exchanging", roles, accelerator, environment, deadline_s=3) == told


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ([-1.0, -2.0 + 2e-4], "log-probs differ by more than they may in qwen3, float32, qwen3_moe, float32 "),
        ([-1.0, math.nan], "log-probs differ by more than they may in qwen3, float32, qwen3, bfloat16, "),
        ([-1.0], "1 log-probs came, not 2"),
        (ForwardFault("forward qwen3: no kernel"), "forward qwen3: no kernel"),
    ],
    ids=["beyond", "nan", "too few", "fault"],
)
def test_a_forward_pass_that_is_wrong_fails_the_part(monkeypatch, found, told):
    def forward(*_):
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(gpu_check, "write", lambda family, path: [-1.0, -2.0])
    monkeypatch.setattr(gpu_check, "forward", forward)
    setting = gpu_check.Setting(accelerator=None, devices=1, steps=1, on_cpu=False, assets=Path())
    result = gpu_check.run_part("forward", gpu_check.megatron_forward, setting)
    assert result.status == "failed"
    assert result.detail.startswith(told)


def test_every_accelerator_with_device_memory_is_one_that_can_be_checked():
    from benchmarks.gpu_ipc import MEMORY
    from vime_core.plugins.manager import load_plugins

    devices = {name for name in load_plugins().entries("accelerator") if name != "cpu"}
    assert devices == set(MEMORY)
    for module, name in MEMORY.values():
        assert hasattr(import_module(module), name)
