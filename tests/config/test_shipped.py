"""`vime config --validate` over every YAML file that is shipped, and that it is what `vime train` does."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from vime_core.cli import main
from vime_core.config.compose import compose
from vime_core.config.location import conf_folder
from vime_core.models.tensors import tensor_shapes
from vime_core.plugins.manager import load_plugins
from vime_core.testing.tokenizers import write_byte_tokenizer

EXAMPLES = conf_folder().parent / "examples"
SHIPPED = sorted(
    [*conf_folder().glob("*/*.yaml"), *EXAMPLES.rglob("experiment/*.yaml"), *EXAMPLES.rglob("hardware/*.yaml")]
)


SHAPE = {
    "vocab_size": 264,
    "eos_token_id": 258,
    "max_position_embeddings": 1 << 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 4,
    "num_experts": 8,
}
"""Long prompts fit, and eight devices can share out heads and experts."""


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Tiny stand-ins for the models of the experiments, by family."""
    return {family: write_model(tmp_path_factory.mktemp(family), family) for family in ("qwen3", "qwen3_moe")}


def write_model(folder, name):
    write_byte_tokenizer(folder)
    family = load_plugins().find("model", name).build()
    hf_config = family.tiny()
    hf_config |= {key: value for key, value in SHAPE.items() if key in hf_config}
    geometry = family.geometry(hf_config, None)
    shapes = tensor_shapes(geometry, family.tensor_map(geometry))
    weights = {name: np.ones(shape, dtype=np.float32) for name, shape in shapes.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(hf_config))
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    file = tmp_path_factory.mktemp("data") / "rows.jsonl"
    file.write_text('{"prompt": "1+1", "label": "2"}\n' * 3)
    return file


@pytest.fixture
def paths(models, data, tmp_path):
    """Replaces the files that an experiment names, which nobody ships, by small ones."""

    def overrides(*chosen):
        tree = compose(chosen, require_available=False).tree
        family = "qwen3_moe" if tree["train"].get("expert_parallel", 1) > 1 else "qwen3"
        return [
            *chosen,
            f"model.path={models[family]}",
            f"data.train={data}",
            f"run.root={tmp_path}/out",
            *(f"evals.{name}.path={data}" for name in tree["evals"]),
        ]

    return overrides


def validate(capsys, *overrides):
    """(status, what is told)"""
    status = main(["config", "--validate", *overrides])
    return status, capsys.readouterr().err


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_every_shipped_file_is_valid(file, paths, capsys, tmp_path):
    """On a machine without the accelerator that it is for, all but that accelerator and its memory."""
    given = paths(f"{file.parent.name}={file.stem}")
    status, told = validate(capsys, *given)
    if "is unavailable" in told:
        status, told = validate(capsys, *given, "accelerator=cpu", "run.check_memory=false")
    assert (status, told) == (0, "")
    assert not (tmp_path / "out").exists()


def test_the_defaults_are_valid(paths, capsys):
    assert validate(capsys, *paths("hardware=cpu")) == (0, "")
