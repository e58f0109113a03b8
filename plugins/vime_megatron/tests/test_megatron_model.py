from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from vime_core.data.batching import pack
from vime_core.errors import ModelError
from vime_core.testing.samples import make_sample, make_train_sample

if TYPE_CHECKING:
    from collections.abc import Callable

    from vime_core.types import MicroBatch

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}

CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "head_dim is not hidden / heads, two heads a group": {},
    "tied": {"tie_word_embeddings": True},
    "one head a group": {"num_key_value_heads": 4, "head_dim": 16},
    "four heads a group": {"num_key_value_heads": 1},
    "linear scaling": {"rope_scaling": {"rope_type": "linear", "factor": 3.0}, "rope_theta": 1e6},
    "yarn": {"rope_scaling": YARN},
    "vocabulary not a multiple of anything, three layers": {"vocab_size": 131, "num_hidden_layers": 3},
    "sharded files": {"max_shard_size": "100KB", "rms_norm_eps": 1e-5},
}


@pytest.fixture(params=list(CONFIGURATIONS.values()), ids=list(CONFIGURATIONS))
def configured(request: pytest.FixtureRequest, make_model: Callable[..., Any]) -> Any:
    return make_model(**request.param)


def test_logits_are_those_of_transformers(configured: Any, start: Callable[..., Any], packed: MicroBatch) -> None:
    backend = start(configured)
    passes = backend._passes
    with torch.no_grad():
        hidden = passes._hidden(backend._model, passes._to_device(packed, len(packed.token_ids)))
        logits = hidden.squeeze(1) @ passes._policy.output_weight().T
        reference = configured.transformers()
        for begin, end in zip(packed.cu_seqlens[:-1], packed.cu_seqlens[1:], strict=True):
            expected = reference(torch.from_numpy(packed.token_ids[begin:end])[None]).logits[0]
            assert (logits[begin:end] - expected).abs().max() < 1e-4


def test_weights_come_back_bit_for_bit(configured: Any, start: Callable[..., Any]) -> None:
    exported = {name: tensor.clone() for name, tensor in start(configured).weights()}
    expected = configured.transformers().state_dict()
    if configured.geometry.tied_embeddings:
        del expected["lm_head.weight"]
    assert exported.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(exported[name], tensor), name


def test_weights_come_contiguous_in_the_models_dtype_layer_by_layer(model: Any, start: Callable[..., Any]) -> None:
    names = []
    for name, tensor in start(model, dtype="bfloat16").weights():
        assert tensor.dtype == torch.bfloat16
        assert tensor.is_contiguous()
        assert not tensor.requires_grad
        names.append(name)
    layers = [int(name.split(".")[2]) for name in names if name.startswith("model.layers.")]
    assert layers == sorted(layers)
    assert names[0] == "model.embed_tokens.weight"
    assert names[-2:] == ["model.norm.weight", "lm_head.weight"]


def test_gradients_are_those_of_transformers(
    model: Any, start: Callable[..., Any], packed: MicroBatch, ranks_program: Any
) -> None:
    class Weighted:
        """Sum of advantage * log-prob over the mask."""

        def needs(self) -> Any:
            from vime_core.plugins.interfaces import Needs

            return Needs(old_logprobs=False, ref_logprobs=False, rollout_logprobs=False, entropy=False)

        def loss(self, inputs: Any) -> Any:
            from vime_core.plugins.interfaces import LossOutput

            terms = torch.where(inputs.loss_mask, inputs.advantages * inputs.logprobs, 0.0)
            return LossOutput(terms.sum(), {})

    backend = start(model, temperature=0.7)
    backend._model.zero_grad_buffer()
    backend._passes.gradients([packed], Weighted(), 5.0)
    found = ranks_program.gradients(backend)

    reference = model.transformers()
    for begin, end in zip(packed.cu_seqlens[:-1], packed.cu_seqlens[1:], strict=True):
        token_ids = torch.from_numpy(packed.token_ids[begin:end])[None]
        logprobs = torch.log_softmax(reference(token_ids).logits[0] / 0.7, -1)[:-1].gather(1, token_ids[0, 1:, None])[
            :, 0
        ]
        mask = torch.from_numpy(packed.loss_mask[begin + 1 : end])
        advantages = torch.from_numpy(packed.advantages[begin + 1 : end])
        (torch.where(mask, advantages * logprobs, 0.0).sum() / 5.0).backward()
    for name, weight in reference.named_parameters():
        assert weight.grad is not None
        error = (found[name] - weight.grad).norm() / weight.grad.norm()
        assert error < 1e-4, (name, error)


def test_packed_logprobs_equal_those_of_each_sequence_alone(
    model: Any, start: Callable[..., Any], samples: list[Any], packed: MicroBatch
) -> None:
    backend = start(model)
    (together,) = backend.logprobs([packed])
    alone = np.concatenate(backend.logprobs([pack(samples, [row]) for row in range(len(samples))]))
    assert together.dtype == np.float32
    assert np.abs(together - alone).max() < 1e-6


def test_logprobs_stand_at_their_own_token(model: Any, start: Callable[..., Any], packed: MicroBatch) -> None:
    (found,) = start(model, temperature=0.6).logprobs([packed])
    reference = model.transformers()
    for begin, end in zip(packed.cu_seqlens[:-1], packed.cu_seqlens[1:], strict=True):
        token_ids = torch.from_numpy(packed.token_ids[begin:end])[None]
        with torch.no_grad():
            distribution = torch.log_softmax(reference(token_ids).logits[0] / 0.6, -1)
        assert found[begin] == 0.0
        for t in range(1, end - begin):
            assert found[begin + t] == pytest.approx(distribution[t - 1, token_ids[0, t]].item(), abs=1e-5)


def test_many_sequences_of_one_token_and_padding_only(model: Any, start: Callable[..., Any]) -> None:
    backend = start(model)
    short = [make_train_sample(make_sample(1, 0, index=index, vocabulary=100)) for index in range(5)]
    values = backend.logprobs([pack(short, range(5)), pack(short, [])])
    assert [value.tolist() for value in values] == [[0.0] * 5, [0.0]]
    assert backend.logprobs([]) == []


def test_a_feature_that_is_not_there_is_told(model: Any, start: Callable[..., Any]) -> None:
    with pytest.raises(ModelError, match="attention biases are not supported by training backend megatron"):
        start(replace(model, geometry=replace(model.geometry, attention_bias=True)))


def test_a_role_without_a_parameter_is_told(model: Any, start: Callable[..., Any]) -> None:
    strange = [replace(rule, role="layer.attention.sink") for rule in model.tensor_map[2:3]]
    with pytest.raises(ModelError, match=r"no parameter for role 'layer\.attention\.sink'"):
        start(replace(model, tensor_map=[*model.tensor_map[:3], *strange, *model.tensor_map[3:]]))


def test_a_parameter_without_a_rule_is_told(model: Any, start: Callable[..., Any]) -> None:
    rules = [rule for rule in model.tensor_map if rule.role != "layer.attention.k_norm"]
    with pytest.raises(ModelError, match=r"no rule for Megatron's parameter .*layers\.0\.self_attention\.k_layernorm"):
        start(replace(model, tensor_map=rules))


def test_a_wrong_shape_is_told(make_model: Callable[..., Any], model: Any, start: Callable[..., Any]) -> None:
    narrow = make_model(intermediate_size=128)
    with pytest.raises(ModelError, match=r"tensor model\.layers\.0\.mlp\.gate_proj\.weight has shape \[128, 64\]"):
        start(replace(model, path=narrow.path))


def test_a_missing_tensor_is_told(model: Any, start: Callable[..., Any], make_model: Callable[..., Any]) -> None:
    shallow = make_model(num_hidden_layers=1)
    assert json.loads((shallow.path / "config.json").read_text())["num_hidden_layers"] == 1
    with pytest.raises(ModelError, match=r"has no tensor model\.layers\.1\.input_layernorm\.weight"):
        start(replace(model, path=shallow.path))
