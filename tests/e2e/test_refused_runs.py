"""What a user gets wrong: one clear line, exit status 2, and nothing was started or written."""

import json
import shutil

import pyarrow
import pyarrow.parquet
import pytest
from safetensors.torch import load_file, save_file

from vime_core.cli.app import main


@pytest.fixture
def refused(world, tmp_path, capsys, monkeypatch):
    """Runs `vime train` in this process and returns the line it was refused with."""
    monkeypatch.setattr("vime_core.loop.train.started", lambda *_: pytest.fail("a process was started"))

    def run(*overrides):
        settings = ["hardware=cpu", f"model.path={world.model}", f"data.train={world.data}", f"run.root={tmp_path}/out"]
        limits = ["rollout.max_prompt_tokens=512", "rollout.max_response_tokens=12"]
        status = main(["train", *settings, *limits, *overrides])
        told = capsys.readouterr().err.strip()
        assert status == 2, told
        assert main(["config", "--validate", *settings, *limits, *overrides]) == 2
        assert capsys.readouterr().err.strip() == told
        assert len(told.splitlines()) == 1
        assert told.startswith("error: ")
        assert not (tmp_path / "out").exists()
        return told

    return run


@pytest.fixture
def model(world, tmp_path):
    return shutil.copytree(world.model, tmp_path / "model")


def test_model_folder_that_is_not_there(refused):
    assert "/no/model is not a folder" in refused("model.path=/no/model")


def test_model_without_config(refused, model):
    (model / "config.json").unlink()
    assert "has no config.json" in refused(f"model.path={model}")


def test_model_without_weights(refused, model):
    (model / "model.safetensors").unlink()
    assert "no weights" in refused(f"model.path={model}")


def test_model_without_tokenizer(refused, model):
    (model / "tokenizer.json").unlink()
    assert "tokenizer" in refused(f"model.path={model}")


def test_tensor_missing(refused, model):
    tensors = load_file(model / "model.safetensors")
    del tensors["model.layers.1.self_attn.q_norm.weight"]
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
    assert "model.layers.1.self_attn.q_norm.weight" in refused(f"model.path={model}")


def test_tensor_of_a_wrong_shape(refused, model):
    tensors = load_file(model / "model.safetensors")
    tensors["model.norm.weight"] = tensors["model.norm.weight"][:-1].clone()
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
    told = refused(f"model.path={model}")
    assert "model.norm.weight" in told
    assert "[63]" in told.replace("(63,)", "[63]")


def test_engines_that_cannot_sleep(refused):
    assert "rollout.sleep=true: engines cannot sleep with accelerator=cpu" in refused("rollout.sleep=true")


def test_data_file_that_is_not_there(refused):
    assert "/no/data.parquet" in refused("data.train=/no/data.parquet")


def test_data_without_the_keys(refused, tmp_path):
    file = tmp_path / "wrong.jsonl"
    file.write_text(json.dumps({"question": "1+1", "answer": "2"}) + "\n")
    told = refused(f"data.train={file}")
    assert str(file) in told
    assert "prompt" in told


def test_parquet_row_without_a_gold(refused, tmp_path):
    rows = [
        {"prompt": [{"role": "user", "content": "1+1"}], "reward_model": {"ground_truth": "2"}},
        {"prompt": [{"role": "user", "content": "1+2"}], "reward_model": {"ground_truth": None}},
    ]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "wrong.parquet")
    told = refused(f"data.train={tmp_path}/wrong.parquet")
    assert "row 1" in told
    assert "ground_truth" in told


def test_empty_data_set(refused, tmp_path):
    (tmp_path / "empty.jsonl").touch()
    assert "empty.jsonl" in refused(f"data.train={tmp_path}/empty.jsonl")


def test_every_prompt_too_long(refused):
    assert "rollout.max_prompt_tokens" in refused("rollout.max_prompt_tokens=3")


def test_unknown_override(refused):
    assert "unknown key train.learning_rate" in refused("train.learning_rate=1")


def test_unknown_override_names_the_closest_key(refused):
    assert "clip_ratio_high" in refused("+algorithm.clip_ratio_hi=0.3")


def test_batch_that_does_not_divide(refused):
    told = refused("rollout.prompts_per_step=10", "algorithm.updates_per_rollout=3")
    assert "rollout.prompts_per_step=10" in told
    assert "algorithm.updates_per_rollout=3" in told


def test_sequences_longer_than_the_model(refused):
    assert "max_position_embeddings" in refused("rollout.max_response_tokens=5000")


def test_rollout_logprobs_of_a_cut_distribution(refused):
    told = refused("algorithm.old_logprobs=rollout", "rollout.top_p=0.9")
    assert "rollout.top_p=0.9" in told


def test_unavailable_accelerator(refused):
    assert "unavailable" in refused("accelerator=rocm")


def test_nothing_to_resume(refused):
    assert "resume.run" in refused("resume.mode=must")
    assert "/no/run" in refused("resume.mode=must", "resume.run=/no/run")


def test_a_row_that_no_reward_judges(refused, tmp_path):
    rows = [{"prompt": "1+1", "label": "2", "source": source} for source in ("math_a", "math_b", "code")]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = (f"data.train={file}", "data.source_key=source")
    told = refused(*data, "reward=[dapo_math]", "rewards.dapo_math.data_sources=[math_*]")
    assert "data_source 'code'" in told
    assert "rewards.dapo_math.data_sources=[math_*]" in told
    told = refused(*data, "reward=[dapo_math,length_penalty]", "rewards.dapo_math.data_sources=[maths]")
    assert "rewards.dapo_math.data_sources=[maths] matches no row" in told


def test_too_little_shared_memory(refused):
    told = refused("cluster.object_store_mib=900000000")
    assert "/dev/shm has " in told
    assert "900000000 MiB by cluster.object_store_mib" in told
