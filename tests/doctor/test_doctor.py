"""Each check on an environment that is broken in one way: the right problem and the right remedy."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from vime_core.accelerators.cpu import CpuAccelerator
from vime_core.accelerators.findings import Finding
from vime_core.cli import doctor as command
from vime_core.cluster.limits import OPEN_FILES, raise_open_files
from vime_core.config.schema import AcceleratorConfig
from vime_core.doctor import checks, node, packages
from vime_core.doctor.devices import check_accelerator
from vime_core.plugins.manager import load_plugins
from vime_rocm import accelerator as rocm
from vime_rocm.doctor import check_rocm
from vime_vllm.doctor import MARK, check_platform


@pytest.mark.parametrize(
    ("now", "status"), [(OPEN_FILES, "ok"), (2 * OPEN_FILES, "ok"), (20_000, "warning"), (1024, "problem")]
)
def test_open_files(now, status):
    finding = node.check_open_files(1024, now)
    assert finding.status == status
    assert ("--ulimit nofile=1048576:1048576" in finding.remedy) == (status != "ok")
    assert ("raises" in finding.detail) == (now != 1024)


def test_the_limit_is_raised_within_the_hard_one():
    program = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (100, 300))\n"
        "from vime_core.cluster.limits import raise_open_files\n"
        "print(*raise_open_files(200), *raise_open_files(), *resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["100", "200", "200", "300", "300", "300"]
    assert raise_open_files(0)[0] == raise_open_files(0)[1], "never lowered"


def test_shared_memory_that_is_too_small(monkeypatch, tmp_path):
    missing = node.check_shared_memory(tmp_path / "none")
    assert (missing.status, missing.remedy) == ("problem", "mount a tmpfs there")
    for free, status in ((64 << 20, "problem"), (2 << 30, "warning"), (64 << 30, "ok")):
        monkeypatch.setattr(node.shutil, "disk_usage", lambda folder, free=free: os_usage(free))
        finding = node.check_shared_memory(tmp_path)
        assert finding.status == status
        assert ("--shm-size" in finding.remedy) == (status != "ok")


def os_usage(free):
    return type("usage", (), {"free": free, "total": 64 << 30})


def test_ports_that_are_all_taken(monkeypatch):
    class Taken(node.socket.socket):
        def bind(self, address):
            raise OSError(98, "Address already in use")

    monkeypatch.setattr(node.socket, "socket", Taken)
    finding = node.check_ports()
    assert finding.status == "problem"
    assert finding.detail == "only 0 of 32 free ports on 127.0.0.1: Address already in use"
    assert "ip_local_port_range" in finding.remedy


@pytest.mark.parametrize(
    ("torch", "vision", "pin", "status"),
    [
        ("2.13.0+cpu", None, (), "ok"),
        ("2.13.0+cpu", "0.28.0+cpu", ("numpy", "torch==2.13.0"), "ok"),
        ("2.13.0+cpu", "0.27.0", ("torch==2.12.0",), "problem"),
        ("2.9.0+rocm7.0", "0.24.0+cu128", ("torch (==2.9.0)",), "warning"),
    ],
)
def test_a_torchvision_of_another_torch(torch, vision, pin, status):
    versions = {"torch": torch, "torchvision": vision}
    finding = packages.check_torchvision(versions.get, lambda name: pin)
    assert finding.status == status
    assert bool(finding.remedy) == (status != "ok")


def test_torch_that_is_missing():
    assert packages.check_torch(lambda name: None).status == "problem"


def test_what_ray_counts():
    assert packages.check_ray(None, lambda: 0).status == "ok"
    fewer = packages.check_ray(8, lambda: 0)
    assert (fewer.status, "ray start --num-gpus" in fewer.remedy) == ("warning", True)

    def refuses():
        raise RuntimeError("Please use HIP_VISIBLE_DEVICES instead of ROCR_VISIBLE_DEVICES")

    assert packages.check_ray(None, refuses).detail.endswith("instead of ROCR_VISIBLE_DEVICES")


@pytest.fixture
def instinct(monkeypatch, tmp_path):
    """A node with eight GPUs and their driver, as far as files tell."""
    (tmp_path / "kfd").touch()
    monkeypatch.setattr(rocm, "KFD", tmp_path / "kfd")
    monkeypatch.setattr(rocm, "installed_gpus", lambda: 8)
    return rocm.RocmAccelerator(AcceleratorConfig())


def test_a_driver_with_the_wrong_torch(instinct):
    [finding] = check_accelerator(instinct, "torch 2.13.0+cpu is not a ROCm build", {})
    assert finding.status == "problem"
    assert finding.detail == "its driver is loaded, but torch 2.13.0+cpu is not a ROCm build"
    assert "accelerator=cpu" in finding.remedy


def test_masks_that_conflict(instinct):
    environment = {"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "1"}
    [_, masks] = check_accelerator(instinct, "no torch", environment)
    assert masks.status == "problem"
    assert "HIP_VISIBLE_DEVICES=0 and CUDA_VISIBLE_DEVICES=1 differ" in masks.detail
    assert masks.remedy == "unset HIP_VISIBLE_DEVICES CUDA_VISIBLE_DEVICES or mend it before vime starts"
    [_, fine] = check_accelerator(instinct, "no torch", {"ROCR_VISIBLE_DEVICES": "6,7"})
    assert (fine.status, fine.detail) == ("ok", "ROCR_VISIBLE_DEVICES=6,7: 2 devices")


def test_masks_where_there_is_no_such_device_are_nobodys_business():
    accelerator = CpuAccelerator(AcceleratorConfig())
    assert [finding.status for finding in check_accelerator(accelerator, None, {"HIP_VISIBLE_DEVICES": ""})] == ["ok"]


def test_rocm_without_amdsmi(tmp_path):
    (tmp_path / "version").write_text("7.2.0\n")
    found = {
        item.check: item
        for item in check_rocm({"HSA_ENABLE_IPC_MODE_LEGACY": "1"}, Path("/none"), tmp_path / "version")
    }
    assert "ROCm 7.2.0" in found["rocm"].detail
    assert found["amdsmi"].status == "problem"
    assert found["hip ipc"].status == "warning"
    assert check_rocm({}, Path("/none"), Path("/none"))[-1].status == "ok"


def test_a_vllm_that_cannot_be_imported():
    broken = check_platform("0.32.0", [sys.executable, "-c", "import no_such_module"])
    assert (broken.status, broken.detail) == (
        "problem",
        "0.32.0 cannot be imported: ModuleNotFoundError: No module named 'no_such_module'",
    )
    stuck = check_platform("0.32.0", [sys.executable, "-c", "input()"], deadline_s=0.0)
    assert "is not imported within 0 s" in stuck.detail
    none = check_platform("0.32.0", [sys.executable, "-c", f"print('{MARK}none')"])
    assert "amdsmi" in none.remedy
    assert check_platform("0.32.0", [sys.executable, "-c", f"print('{MARK}cpu')"]).status == "ok"


def test_the_status_follows_the_worst_finding(monkeypatch, capsys):
    findings = [Finding("a", "ok", "fine"), Finding("b", "warning", "hm", "look")]
    monkeypatch.setattr(command, "check_node", lambda plugins: findings)
    assert command.run([], show_traceback=False) == 0
    assert "-> look" in capsys.readouterr().out
    findings.append(Finding("c", "problem", "no", "mend"))
    assert command.run(["--json"], show_traceback=False) == 1
    assert json.loads(capsys.readouterr().out)[-1] == {
        "check": "c",
        "status": "problem",
        "detail": "no",
        "remedy": "mend",
    }


def test_this_machine_is_fit():
    """Everything real but the import of vLLM, which takes half a minute on a busy machine."""
    plugins = load_plugins(["vllm", "rocm"])
    findings = checks.check_node(plugins)
    assert {"host", "open files", "shared memory", "ports", "torch", "ray", "accelerator cpu"} <= {
        finding.check for finding in findings
    }
    if not Path("/dev/kfd").exists() and not Path("/proc/driver/nvidia").exists():
        assert [finding for finding in findings if finding.status == "problem"] == []
    assert os.environ.get("RAY_ADDRESS") is None


@pytest.mark.full
def test_the_command_on_this_machine():
    done = subprocess.run(
        [sys.executable, "-m", "vime_core.cli", "doctor", "--json"], capture_output=True, text=True, timeout=280
    )
    found = {item["check"]: item for item in json.loads(done.stdout)}
    assert found["vllm"]["detail"].endswith("platform cpu")
    assert done.returncode == 0, done.stdout
