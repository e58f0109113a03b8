import shutil

import pytest

from examples.quickstart import make_assets as module
from examples.quickstart.make_assets import make_assets
from examples.quickstart.warmup import WarmUp
from vime_core.models.checkpoint import SafetensorsFolder
from vime_core.models.hf import inspect_model
from vime_qwen3.qwen3 import Qwen3
from vime_qwen3.qwen3_moe import Qwen3Moe

SHORT = WarmUp(steps=3, batch=8, report_every=3)


def contents(folder):
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_the_same_seed_gives_the_same_bytes(assets, tmp_path):
    make_assets(tmp_path / "again", 0, SHORT)
    assert contents(tmp_path / "again") == contents(assets)


def test_another_seed_gives_another_model_and_other_problems(assets, tmp_path):
    make_assets(tmp_path / "other", 1, SHORT)
    first, other = contents(assets), contents(tmp_path / "other")
    assert first.keys() == other.keys()
    assert {name for name in first if first[name] != other[name]} == {
        "model/model.safetensors",
        "train.parquet",
        "heldout.parquet",
    }


def test_vime_accepts_the_model_and_ends_responses_at_either_token(assets):
    model = inspect_model(assets / "model", {"qwen3": Qwen3()})
    assert model.family_name == "qwen3"
    assert set(model.geometry.eos_token_ids) == {258, 256}
    tensors = SafetensorsFolder(assets / "model").tensors
    assert {info.dtype for info in tensors.values()} == {"F32"}


def test_vime_accepts_the_model_with_experts(tmp_path):
    make_assets(tmp_path / "moe", 0, WarmUp(steps=1, batch=2), experts=True)
    model = inspect_model(tmp_path / "moe" / "model", {"qwen3": Qwen3(), "qwen3_moe": Qwen3Moe()})
    assert (model.family_name, model.extra_tensors) == ("qwen3_moe", ())
    assert model.geometry.experts.normalize_top_k
    assert (model.geometry.experts.num_experts, model.geometry.experts.top_k) == (8, 2)


def test_a_folder_that_is_there_is_left_alone(assets):
    before = contents(assets)
    with pytest.raises(FileExistsError, match="remove it"):
        make_assets(assets, 0, SHORT)
    assert contents(assets) == before


def test_a_failure_leaves_nothing_behind(tmp_path, monkeypatch):
    def fail(folder, seed, plan, experts):
        (folder / "half").touch()
        raise RuntimeError("no space")

    monkeypatch.setattr(module, "_fill", fail)
    with pytest.raises(RuntimeError, match="no space"):
        make_assets(tmp_path / "assets", 0)
    assert list(tmp_path.iterdir()) == []


def test_what_another_process_made_meanwhile_is_kept(assets, tmp_path, monkeypatch):
    def made_meanwhile(folder, seed, plan, experts):
        shutil.copytree(assets, tmp_path / "assets")

    monkeypatch.setattr(module, "_fill", made_meanwhile)
    with pytest.raises(FileExistsError):
        make_assets(tmp_path / "assets", 0)
    assert contents(tmp_path / "assets") == contents(assets)
    assert [path.name for path in tmp_path.iterdir()] == ["assets"]
