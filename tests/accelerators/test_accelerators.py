import os
import subprocess
import sys

import pytest

from vime_core.accelerators import cuda
from vime_core.accelerators.cpu import CpuAccelerator
from vime_core.accelerators.threads import ThreadPlan, plan_threads, usable_cores
from vime_core.config.schema import AcceleratorConfig


def test_cpu_uses_the_cores_it_may_run_on():
    accelerator = CpuAccelerator(AcceleratorConfig())
    assert accelerator.device_count() == usable_cores() >= 1
    assert CpuAccelerator(AcceleratorConfig(cores=7)).device_count() == 7


def test_cpu_child_sees_its_threads_and_no_other_device():
    environment = CpuAccelerator(AcceleratorConfig()).child_environment([0], threads=1)
    code = "import torch; print(torch.get_num_threads(), torch.cuda.device_count())"
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | environment, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.split() == ["1", "0"], done.stderr


def test_cpu_memory_is_the_hosts():
    free, total = CpuAccelerator(AcceleratorConfig()).memory()
    assert 0 < free <= total


@pytest.mark.parametrize(
    ("cores", "ranks", "engines", "turns", "plan"),
    [
        (2, 1, 2, True, ThreadPlan(2, 1)),
        (2, 2, 2, True, ThreadPlan(1, 1)),
        (1, 1, 2, True, ThreadPlan(1, 1)),
        (16, 2, 4, True, ThreadPlan(8, 4)),
        (16, 2, 4, False, ThreadPlan(4, 2)),
        (2, 1, 1, False, ThreadPlan(1, 1)),
        (3, 1, 1, False, ThreadPlan(1, 2)),
    ],
)
def test_thread_plan(cores, ranks, engines, turns, plan):
    assert plan_threads(cores, ranks=ranks, engines=engines, taking_turns=turns) == plan


def test_thread_plan_can_be_overridden():
    assert plan_threads(8, ranks=1, engines=1, taking_turns=True, trainer=3, engine=5) == ThreadPlan(3, 5)


def test_cuda_says_why_it_is_unavailable(tmp_path, monkeypatch):
    assert cuda.probe(tmp_path / "none") == "no NVIDIA driver is loaded"
    driver = tmp_path / "version"
    driver.touch()
    monkeypatch.setattr(cuda.metadata, "version", lambda name: "2.13.0+cpu")
    assert cuda.probe(driver) == "torch 2.13.0+cpu is not a CUDA build"
    monkeypatch.setattr(cuda.metadata, "version", lambda name: "2.13.0")
    assert cuda.probe(driver) is None


def test_cuda_child_environment_masks_devices():
    environment = cuda.CudaAccelerator(AcceleratorConfig()).child_environment([2, 3], threads=4)
    assert environment["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert environment["OMP_NUM_THREADS"] == "4"
