"""Mixture-of-experts models on one rank, against transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from vime_core.models.stacked import open_weights
from vime_core.models.tensors import tensor_shapes
from vime_core.plugins.interfaces import LossOutput, Needs
from vime_megatron import compat

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from vime_core.types import MicroBatch

SHAPES: dict[str, dict[str, Any]] = {
    "two of four, a dense layer": {},
    "one of three": {"num_experts": 3, "num_experts_per_tok": 1},
    "one of four, not normalised": {"num_experts_per_tok": 1, "norm_topk_prob": False},
    "three of eight, not normalised": {"num_experts": 8, "num_experts_per_tok": 3, "norm_topk_prob": False},
    "all of four": {"num_experts_per_tok": 4},
    "every second layer": {"mlp_only_layers": [], "decoder_sparse_step": 2, "num_hidden_layers": 4},
    "no dense layer, experts as wide as MLPs, tied": {
        "mlp_only_layers": [],
        "moe_intermediate_size": 160,
        "num_hidden_layers": 2,
        "tie_word_embeddings": True,
    },
}


@pytest.fixture(params=list(SHAPES.values()), ids=list(SHAPES))
def shaped(request: pytest.FixtureRequest, make_model: Callable[..., Any]) -> Any:
    return make_model(family="qwen3_moe", **request.param)


class Weighted:
    """Sum of advantage * log-prob over the mask."""

    def needs(self) -> Needs:
        return Needs(old_logprobs=False, ref_logprobs=False, rollout_logprobs=False, entropy=False)

    def loss(self, inputs: Any) -> LossOutput:
        return LossOutput(torch.where(inputs.loss_mask, inputs.advantages * inputs.logprobs, 0.0).sum(), {})


def stored(model: Any) -> dict[str, torch.Tensor]:
    """The tensors of a folder, expert by expert."""
    folder = open_weights(model.path, model.geometry, model.tensor_map)
    return dict(folder.load(tensor_shapes(model.geometry, model.tensor_map)))


def stack(values: dict[str, torch.Tensor], name: str) -> torch.Tensor:
    """A parameter as transformers holds it in memory, from tensors by their names in files."""
    if ".experts." not in name:
        return values[name]
    prefix, kind = name.rsplit(".", 1)
    experts = range(sum(key.startswith(prefix) and key.endswith("down_proj.weight") for key in values))
    parts = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}[kind]
    return torch.stack([torch.cat([values[f"{prefix}.{e}.{part}.weight"] for part in parts]) for e in experts])


def test_logits_are_those_of_transformers(shaped: Any, start: Callable[..., Any], packed: MicroBatch) -> None:
    backend = start(shaped)
    passes = backend._passes
    with torch.no_grad():
        hidden = passes._hidden(backend._model, passes._to_device(packed, len(packed.token_ids)))
        logits = hidden.squeeze(1) @ passes._policy.output_weight().T
        reference = shaped.transformers()
        for begin, end in zip(packed.cu_seqlens[:-1], packed.cu_seqlens[1:], strict=True):
            expected = reference(torch.from_numpy(packed.token_ids[begin:end])[None]).logits[0]
            assert (logits[begin:end] - expected).abs().max() < 1e-4


def test_weights_come_back_bit_for_bit(shaped: Any, start: Callable[..., Any]) -> None:
    exported = {name: tensor.clone() for name, tensor in start(shaped).weights()}
    expected = stored(shaped)
    assert list(exported) == list(tensor_shapes(shaped.geometry, shaped.tensor_map))
    assert all(torch.equal(exported[name], tensor) for name, tensor in expected.items())


@pytest.mark.parametrize("grouped", [False, True])
def test_gradients_are_those_of_transformers(
    grouped: bool, moe_model: Any, start: Callable[..., Any], packed: MicroBatch, ranks_program: Any
) -> None:
    backend = start(moe_model, temperature=0.7, moe_grouped_gemm=grouped)
    backend._model.zero_grad_buffer()
    backend._passes.gradients([packed], Weighted(), 5.0)
    found = ranks_program.gradients(backend)
    reference = moe_model.transformers()
    for begin, end in zip(packed.cu_seqlens[:-1], packed.cu_seqlens[1:], strict=True):
        token_ids = torch.from_numpy(packed.token_ids[begin:end])[None]
        logits = reference(token_ids).logits[0] / 0.7
        logprobs = torch.log_softmax(logits, -1)[:-1].gather(1, token_ids[0, 1:, None])[:, 0]
        mask = torch.from_numpy(packed.loss_mask[begin + 1 : end])
        advantages = torch.from_numpy(packed.advantages[begin + 1 : end])
        (torch.where(mask, advantages * logprobs, 0.0).sum() / 5.0).backward()
    for name, weight in reference.named_parameters():
        assert weight.grad is not None
        error = (stack(found, name) - weight.grad).norm() / weight.grad.norm()
        assert error < 1e-4, (name, error)


def test_stacked_experts_are_read_like_single_ones(moe_model: Any, start: Callable[..., Any], tmp_path: Path) -> None:
    """As transformers 5 writes them with `save_original_format=False`."""
    moe_model.transformers().save_pretrained(tmp_path, save_original_format=False)
    assert "model.layers.0.mlp.experts.gate_up_proj" in load_file(tmp_path / "model.safetensors")
    stacked = type(moe_model)(tmp_path, moe_model.geometry, moe_model.tensor_map)
    exported = {name: tensor.clone() for name, tensor in start(stacked).weights()}
    expected = stored(moe_model)
    assert exported.keys() == expected.keys()
    assert all(torch.equal(exported[name], tensor) for name, tensor in expected.items())


def test_the_auxiliary_loss_adds_its_own_gradient(
    make_model: Callable[..., Any], start: Callable[..., Any], packed: MicroBatch, ranks_program: Any
) -> None:
    """weight * E * sum_e f_e P_e of every layer, written out on the router's inputs."""
    model = make_model(family="qwen3_moe", num_hidden_layers=1, mlp_only_layers=[])

    def router_gradient(weight: float) -> tuple[Any, torch.Tensor]:
        backend = start(model, moe_aux_loss=weight)
        backend._model.zero_grad_buffer()
        backend._passes.gradients([packed], Weighted(), 5.0)
        return backend, ranks_program.gradients(backend)["model.layers.0.mlp.gate.weight"]

    _, plain = router_gradient(0.0)
    backend, with_loss = router_gradient(0.3)
    inputs: list[torch.Tensor] = []
    layer = backend._passes._policy.decoder.layers[0].mlp
    layer.router.register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0].detach().squeeze(1)))
    backend.logprobs([packed])
    weight = layer.router.weight.detach().clone().requires_grad_()
    probabilities = (inputs[0] @ weight.T).softmax(-1)
    chosen = torch.zeros_like(probabilities).scatter(1, probabilities.topk(2).indices, 1.0)
    (0.3 * 4 * (chosen.mean(0) / 2 * probabilities.mean(0)).sum()).backward()
    assert weight.grad is not None
    torch.testing.assert_close(with_loss - plain, weight.grad, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(
    "guard", [guard for guard in compat.EXPERT_GUARDS if guard.name != "host_splits"], ids=lambda guard: guard.name
)
def test_without_a_guard_there_are_no_experts(
    guard: Any, moe_model: Any, start: Callable[..., Any], packed: MicroBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(moe_model).logprobs([packed])
    monkeypatch.setattr(compat, "install", list)
    if guard.name == "no_transformer_engine":
        monkeypatch.delattr("megatron.core.transformer.moe.moe_utils.te_general_gemm")
    else:
        for site in guard.sites:
            monkeypatch.setattr(f"megatron.core.{site.module}.torch", torch)
    with pytest.raises((AssertionError, RuntimeError, NameError), match=r"CUDA|cuda|te_general_gemm"):
        start(moe_model).logprobs([packed])


def test_checkpoint_lacks_no_expert(moe_model: Any, start: Callable[..., Any], tmp_path: Path) -> None:
    """One expert's tensor less, and the folder is refused by its name."""
    tensors = load_file(moe_model.path / "model.safetensors")
    del tensors["model.layers.2.mlp.experts.3.up_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    broken = type(moe_model)(tmp_path, moe_model.geometry, moe_model.tensor_map)
    with pytest.raises(Exception, match=r"has no tensor model\.layers\.2\.mlp\.experts\.3\.up_proj\.weight"):
        start(broken)
