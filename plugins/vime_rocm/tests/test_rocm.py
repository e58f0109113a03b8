import sys
from pathlib import Path

import pytest

from vime_core.config.schema import AcceleratorConfig
from vime_core.errors import PluginError
from vime_core.plugins.manager import load_plugins
from vime_rocm.accelerator import RocmAccelerator
from vime_rocm.probe import why_unavailable, wrong_build

ROCM_VERSION = (
    "from typing import Optional\n__version__ = '2.9.0+git89075'\nhip: Optional[str] = '6.4.43484-123eb5128'\n"
)
CPU_VERSION = "from typing import Optional\n__version__ = '2.13.0+cpu'\nhip: Optional[str] = None\n"


def nodes_with(tmp_path: Path, *gpu_ids: str) -> Path:
    for number, gpu_id in enumerate(gpu_ids):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "gpu_id").write_text(f"{gpu_id}\n")
    return tmp_path


def test_without_the_driver_it_says_so(tmp_path):
    reason = why_unavailable(kfd=tmp_path / "kfd")
    assert reason is not None
    assert reason.startswith(f"no HIP device: {tmp_path / 'kfd'} does not exist; load the amdgpu driver")


def test_a_device_that_cannot_be_opened_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, mode: False)
    (tmp_path / "kfd").touch()
    assert "cannot be opened; add the user to its group" in str(why_unavailable(kfd=tmp_path / "kfd"))


@pytest.mark.parametrize("gpu_ids", [(), ("0",), ("0", "0", "")])
def test_a_driver_without_a_gpu_is_told(tmp_path, gpu_ids):
    (tmp_path / "kfd").touch()
    nodes = tmp_path / "nodes"
    nodes.mkdir()
    assert "the kernel lists no GPU" in str(why_unavailable(tmp_path / "kfd", nodes_with(nodes, *gpu_ids)))


def test_with_a_gpu_the_torch_build_decides(tmp_path, monkeypatch):
    (tmp_path / "kfd").touch()
    nodes = tmp_path / "nodes"
    nodes.mkdir()
    nodes_with(nodes, "0", "28851")
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").touch()
    version = tmp_path / "torch" / "version.py"
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    version.write_text(CPU_VERSION)
    assert why_unavailable(tmp_path / "kfd", nodes) == "torch 2.13.0+cpu is not a ROCm build"
    version.write_text(ROCM_VERSION)
    assert why_unavailable(tmp_path / "kfd", nodes) is None


def test_a_build_is_known_by_its_hip_version_not_by_its_name(tmp_path):
    version = tmp_path / "version.py"
    version.write_text(ROCM_VERSION)
    assert wrong_build(version) is None
    version.write_text("__version__ = '2.1.0'\ncuda = '12.1'\nhip = None\n")
    assert wrong_build(version) == "torch 2.1.0 is not a ROCm build"
    assert "cannot be read" in str(wrong_build(tmp_path / "nothing.py"))


def test_both_masks_of_a_child_are_the_same():
    accelerator = RocmAccelerator(AcceleratorConfig())
    environment = accelerator.child_environment([2, 3], threads=4)
    assert environment["HIP_VISIBLE_DEVICES"] == environment["CUDA_VISIBLE_DEVICES"] == "2,3,0,1"
    assert environment["OMP_NUM_THREADS"] == "4"
    assert "HIP_VISIBLE_DEVICES" not in accelerator.child_environment([], threads=4)
    assert (accelerator.device(1), accelerator.torch_backend) == ("cuda:1", "nccl")


@pytest.mark.skipif(Path("/dev/kfd").exists(), reason="this machine has the amdgpu driver")
def test_choosing_it_where_it_is_unavailable_tells_why():
    with pytest.raises(PluginError, match=r"accelerator 'rocm' of plugin rocm \(vime-rocm .*\) is unavailable: no HIP"):
        load_plugins().select("accelerator", "rocm")
