"""Grouped products of experts: against Megatron's own forward pass, and against one expert at a time in float64."""

from __future__ import annotations

import weakref
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch.nn import functional

from vime_core.errors import ModelError
from vime_grpo.config import GRPOConfig
from vime_grpo.grpo import GRPO
from vime_megatron import compat, mcore
from vime_megatron.config import MegatronConfig
from vime_megatron.grouped import GroupedExperts, expert_module, grouped_linear
from vime_qwen3.qwen3_moe import Qwen3Moe

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

MOE = Qwen3Moe().geometry(Qwen3Moe().tiny(), None)
BOUNDS = {torch.float32: 1e-5, torch.bfloat16: 0.02}
"""Of the norm of a difference over the norm."""


class Rows(NamedTuple):
    """What experts get, and the gradient of what they return."""

    tokens: torch.Tensor
    counts: torch.Tensor
    probabilities: torch.Tensor
    gradient: torch.Tensor


def rows(counts: Sequence[int], dtype: torch.dtype, hidden: int = MOE.hidden_size) -> Rows:
    generator = torch.Generator().manual_seed(sum(counts))
    tokens, gradient = (torch.randn(sum(counts), hidden, generator=generator).to(dtype) for _ in range(2))
    probabilities = torch.rand(sum(counts), generator=generator)
    return Rows(tokens.requires_grad_(), torch.tensor(counts), probabilities.requires_grad_(), gradient)


def results(experts: Any, forward: Callable[..., Any], routed: Rows) -> dict[str, torch.Tensor]:
    """Output and gradients of a forward pass of all experts."""
    output, bias = forward(experts, routed.tokens, routed.counts, routed.probabilities)
    assert bias is None
    inputs = {"tokens": routed.tokens, "probabilities": routed.probabilities, **dict(experts.named_parameters())}
    gradients = torch.autograd.grad(output, list(inputs.values()), routed.gradient)
    return {"output": output.detach(), **dict(zip(inputs, gradients, strict=True))}


def one_by_one(experts: Any, routed: Rows) -> dict[str, torch.Tensor]:
    """The same in float64 without Megatron: down(silu(gate(x)) * up(x)) * p of each expert and its own tokens."""
    exact = {name: weight.detach().double().requires_grad_() for name, weight in experts.named_parameters()}
    tokens = routed.tokens.detach().double().requires_grad_()
    probabilities = routed.probabilities.detach().double().requires_grad_()
    ends = [0, *routed.counts.cumsum(0).tolist()]
    parts = []
    for index, (begin, end) in enumerate(pairwise(ends)):
        gate, up = exact[f"local_experts.{index}.linear_fc1.weight"].chunk(2)
        down = exact[f"local_experts.{index}.linear_fc2.weight"]
        mine = tokens[begin:end]
        parts.append((functional.silu(mine @ gate.T) * (mine @ up.T)) @ down.T * probabilities[begin:end, None])
    output = torch.cat(parts)
    inputs = {"tokens": tokens, "probabilities": probabilities, **exact}
    gradients = torch.autograd.grad(output, list(inputs.values()), routed.gradient.double())
    return {"output": output.detach(), **dict(zip(inputs, gradients, strict=True))}


def assert_near(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], bound: float) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        error = (found[name].double() - value.double()).norm()
        assert error <= bound * value.double().norm(), (name, float(error))


def assert_near_rows(
    found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], bound: float, routed: Rows
) -> None:
    """The gradient of a probability is an inner product, so rounding is measured by the sizes of its factors."""
    factors = routed.gradient.double() * expected["output"].double() / routed.probabilities.detach()[:, None]
    error = found["probabilities"].double() - expected["probabilities"].double()
    assert (error.abs() <= bound * factors.abs().sum(1)).all()
    rest = [name for name in expected if name != "probabilities"]
    assert_near({name: found[name] for name in rest}, {name: expected[name] for name in rest}, bound)


@pytest.fixture(params=BOUNDS, ids=str)
def experts(request: pytest.FixtureRequest, moe_model: Any, start: Callable[..., Any]) -> Any:
    """The experts of the first layer of a backend that groups them."""
    backend = start(moe_model, moe_grouped_gemm=True, dtype=str(request.param).removeprefix("torch."))
    found = backend._passes._policy.decoder.layers[0].mlp.experts
    assert type(found) is GroupedExperts
    return found


def test_outputs_and_gradients_are_those_of_one_expert_after_the_other(experts: Any) -> None:
    dtype = experts.local_experts[0].linear_fc1.weight.dtype

    @given(counts=st.lists(st.integers(0, 9), min_size=4, max_size=4))
    @example(counts=[0, 0, 0, 0])
    @example(counts=[1, 0, 0, 0])
    @example(counts=[0, 0, 0, 40])
    @settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    def the_same(counts: list[int]) -> None:
        routed = rows(counts, dtype)
        found = results(experts, GroupedExperts.forward, routed)
        assert_near_rows(found, results(experts, mcore.SequentialMLP.forward, routed), BOUNDS[dtype], routed)
        assert_near_rows(found, one_by_one(experts, routed), BOUNDS[dtype], routed)
        assert {found[name].dtype for name in ("output", "tokens")} == {dtype}

    the_same()


def test_one_expert_of_a_rank_is_a_group_too(make_model: Callable[..., Any], start: Callable[..., Any]) -> None:
    model = make_model(family="qwen3_moe", num_experts=1, num_experts_per_tok=1)
    experts = start(model, moe_grouped_gemm=True)._passes._policy.decoder.layers[0].mlp.experts
    routed = rows([7], torch.float32)
    assert_near(results(experts, GroupedExperts.forward, routed), one_by_one(experts, routed), 1e-5)


def test_no_stacked_weights_live_from_forward_to_backward(experts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither does autograd save them, nor does anything else hold them; nor do they outlive the backward pass."""
    stacked: list[weakref.ref[torch.Tensor]] = []
    stack = torch.stack

    def watched(*arguments: Any) -> torch.Tensor:
        made = stack(*arguments)
        stacked.append(weakref.ref(made.untyped_storage()))
        return made

    monkeypatch.setattr(torch, "stack", watched)
    routed = rows([3, 0, 5, 2], experts.local_experts[0].linear_fc1.weight.dtype)
    saved: list[torch.Tensor] = []

    def remember(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(remember, lambda tensor: tensor):
        output, _ = experts(routed.tokens, routed.counts, routed.probabilities)
    assert len(stacked) == 2
    assert not any(reference() for reference in stacked)
    weights = {weight.data_ptr() for weight in experts.parameters()}
    assert {tensor.data_ptr() for tensor in saved} >= weights
    assert all(len(tensor) == len(routed.tokens) for tensor in saved if tensor.data_ptr() not in weights)
    torch.autograd.grad(output, list(experts.parameters()), routed.gradient)
    assert len(stacked) == 4
    assert not any(reference() for reference in stacked)


def test_a_gradient_that_is_a_broadcast_is_taken() -> None:
    weights = [torch.nn.Parameter(torch.randn(8, 4)) for _ in range(2)]
    tokens = torch.randn(5, 4)
    grouped_linear(tokens, [2, 3], weights).sum().backward()
    assert weights[0].grad is not None
    torch.testing.assert_close(weights[0].grad, tokens[:2].sum(0).expand(8, 4))


def test_what_a_kernel_leaves_for_an_expert_without_tokens_is_no_gradient(
    experts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels of some devices do not write there; the memory holds anything."""
    grouped_mm = functional.grouped_mm

    def careless(one: torch.Tensor, other: torch.Tensor, *, offs: torch.Tensor) -> torch.Tensor:
        product = grouped_mm(one, other, offs=offs)
        if other.dim() == 2:
            product[offs.diff(prepend=offs.new_zeros(1)) == 0] = torch.nan
        return product

    routed = rows([0, 3, 0, 2], experts.local_experts[0].linear_fc1.weight.dtype)
    expected = results(experts, GroupedExperts.forward, routed)
    monkeypatch.setattr(functional, "grouped_mm", careless)
    found = results(experts, GroupedExperts.forward, routed)
    assert all(torch.equal(found[name], value) for name, value in expected.items())


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_an_update_is_that_of_one_expert_after_the_other(
    recompute: str,
    moe_model: Any,
    start: Callable[..., Any],
    samples: list[Any],
    batch_of: Callable[..., Any],
    ranks_program: Any,
) -> None:
    """Weights too: the optimizer finds every expert's gradient in its place."""
    algorithm = GRPO(GRPOConfig())
    batch = batch_of(samples, algorithm, max_tokens=40)

    def update(grouped: bool) -> tuple[dict[str, float], dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        backend = start(moe_model, moe_grouped_gemm=grouped, recompute=recompute)
        metrics = backend.update(batch, algorithm).metrics
        return metrics, ranks_program.gradients(backend), ranks_program.weights(backend)

    metrics, gradients, weights = update(grouped=True)
    expected_metrics, expected_gradients, expected_weights = update(grouped=False)
    assert metrics == pytest.approx(expected_metrics, rel=1e-5, abs=1e-7)
    assert_near(gradients, expected_gradients, 1e-5)
    assert_near(weights, expected_weights, 1e-5)


@pytest.mark.parametrize("grouped_first", [False, True])
def test_a_checkpoint_of_one_kind_is_one_of_the_other(
    grouped_first: bool,
    moe_model: Any,
    start: Callable[..., Any],
    samples: list[Any],
    batch_of: Callable[..., Any],
    ranks_program: Any,
    tmp_path: Path,
) -> None:
    """Weights bit for bit, and the optimizer's state: the next update is the same."""
    algorithm = GRPO(GRPOConfig())
    batch = batch_of(samples, algorithm)
    backend = start(moe_model, moe_grouped_gemm=grouped_first)
    backend.update(batch, algorithm)
    backend.save(tmp_path / "saved")
    weights = ranks_program.weights(backend)
    expected = backend.update(batch, algorithm).metrics

    backend = start(moe_model, moe_grouped_gemm=not grouped_first)
    backend.load(tmp_path / "saved")
    found = ranks_program.weights(backend)
    assert found.keys() == weights.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in weights.items())
    assert backend.update(batch, algorithm).metrics == pytest.approx(expected, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize(
    ("on_device", "dtype", "width", "grouped"),
    [
        (False, "bfloat16", 32, False),
        (True, "bfloat16", 32, True),
        (True, "float32", 32, False),
        (True, "bfloat16", 36, False),
    ],
)
def test_experts_are_grouped_on_devices_where_it_pays_and_works(
    on_device: bool, dtype: str, width: int, grouped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert MOE.experts is not None
    geometry = replace(MOE, experts=replace(MOE.experts, ffn_size=width))
    monkeypatch.setattr(compat, "has_device", lambda: on_device)
    config = MegatronConfig(dtype=dtype)
    assert expert_module(geometry, config) is (GroupedExperts if grouped else mcore.SequentialMLP)
    assert expert_module(geometry, replace(config, moe_grouped_gemm=False)) is mcore.SequentialMLP


def test_a_torch_without_grouped_products_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(functional, "grouped_mm")
    monkeypatch.setattr(compat, "has_device", lambda: True)
    assert expert_module(MOE, MegatronConfig()) is mcore.SequentialMLP
    with pytest.raises(ModelError, match=r"moe_grouped_gemm=true needs .*grouped_mm, which torch 2.* has not"):
        expert_module(MOE, MegatronConfig(moe_grouped_gemm=True))
