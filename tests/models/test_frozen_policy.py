"""The training backend `none` streams the model folder."""

import dataclasses

import pytest
import torch

from vime_core.cluster.frozen import FrozenPolicy
from vime_core.config.schema import TrainConfig
from vime_core.models.hf import inspect_model
from vime_core.models.tensors import tensor_shapes
from vime_core.plugins.interfaces import TrainContext


@pytest.fixture
def folder(make_folder, toy):
    made = make_folder("source", files=2)
    made.model = inspect_model(made.path, {"toy": toy})
    return made


def policy(model, dtype):
    given = {
        "rank": 0,
        "world_size": 1,
        "config": TrainConfig(dtype=dtype),
        "model_path": model.path,
        "geometry": model.geometry,
        "tensor_map": model.tensor_map,
    }
    unused = {field.name: None for field in dataclasses.fields(TrainContext)}
    return FrozenPolicy(TrainContext(**{**unused, **given}))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_are_those_of_the_folder_in_the_order_of_the_map(folder, dtype):
    weights = list(policy(folder.model, dtype).weights())
    assert [name for name, _ in weights] == list(tensor_shapes(folder.model.geometry, folder.model.tensor_map))
    for name, tensor in weights:
        assert tensor.is_contiguous()
        assert torch.equal(tensor, folder.tensors[name].to(getattr(torch, dtype)))


def test_a_checkpoint_of_it_holds_nothing(folder, tmp_path):
    frozen = policy(folder.model, "float32")
    before = [(name, tensor.clone()) for name, tensor in frozen.weights()]
    frozen.save(tmp_path / "trainer")
    assert not any(tmp_path.glob("trainer/*"))
    frozen.load(tmp_path / "trainer")
    after = list(frozen.weights())
    assert all(torch.equal(old, new) for (_, old), (_, new) in zip(before, after, strict=True))
