from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vime_core.data.batching import attach, build_update, pack, unpack
from vime_core.errors import TrainerError
from vime_core.plugins.interfaces import LossOutput, Metric, Needs
from vime_grpo.config import GRPOConfig
from vime_grpo.grpo import GRPO

if TYPE_CHECKING:
    from collections.abc import Callable

TOKEN_MEAN = GRPOConfig()
SEQUENCE_MEAN = GRPOConfig(loss_agg="seq_mean", entropy_coef=0.03)
WITH_KL = GRPOConfig(kl_coef=0.2, entropy_coef=0.01)


class Policy:
    """-advantage * log-prob over the mask; a loss whose gradient is easy to know."""

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale

    def needs(self) -> Needs:
        return Needs(old_logprobs=False, ref_logprobs=False, rollout_logprobs=False, entropy=False)

    def denominator(self, mask_lengths: np.ndarray) -> float:
        return float(mask_lengths.sum())

    def loss(self, inputs: Any) -> LossOutput:
        terms = torch.where(inputs.loss_mask, -self.scale * inputs.advantages * inputs.logprobs, 0.0)
        ones = inputs.loss_mask.sum()
        return LossOutput(terms.sum(), {"ones": Metric(ones, None), "mean": Metric(2.0 * ones, ones)})


def gradient_of(backend: Any, ranks_program: Any, batch: Any, algorithm: Any) -> dict[str, torch.Tensor]:
    backend._model.zero_grad_buffer()
    backend._passes.gradients(batch.micro_batches, algorithm, batch.denominator)
    return dict(ranks_program.gradients(backend))


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], tolerance: float = 2e-5) -> None:
    for name, gradient in expected.items():
        error = (found[name] - gradient).norm() / gradient.norm()
        assert error < tolerance, (name, error.item())


@pytest.mark.parametrize("config", [TOKEN_MEAN, SEQUENCE_MEAN, WITH_KL], ids=["tokens", "sequences", "kl"])
def test_gradients_do_not_depend_on_how_samples_are_batched(
    config: GRPOConfig, model: Any, start: Callable[..., Any], samples: list[Any], batch_of: Any, ranks_program: Any
) -> None:
    backend = start(model, temperature=0.8)
    algorithm = GRPO(config)
    reference = [np.linspace(-5, -1, len(sample.sample.response_ids), dtype=np.float32) for sample in samples]

    def gradients(order: list[int], **options: int) -> dict[str, torch.Tensor]:
        batch = batch_of([samples[row] for row in order], algorithm, **options)
        attach([batch], ref=[reference[row] for row in order])
        return gradient_of(backend, ranks_program, batch, algorithm)

    everything = gradients(list(range(len(samples))))

    @given(
        order=st.permutations(range(len(samples))),
        max_tokens=st.sampled_from([1, 14, 20, 33, 4096]),
        pad_to_multiple=st.sampled_from([1, 8]),
    )
    @settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    def the_same(order: list[int], max_tokens: int, pad_to_multiple: int) -> None:
        assert_same(gradients(order, max_tokens=max_tokens, pad_to_multiple=pad_to_multiple), everything)

    the_same()


def test_ratios_of_the_first_update_are_one_though_packed_otherwise(
    model: Any, start: Callable[..., Any], samples: list[Any], batch_of: Any
) -> None:
    backend = start(model)
    order = [4, 1, 7, 0, 8, 2, 6, 3, 5]
    separate = [pack(samples, order[:3]), pack(samples, order[3:])]
    old = unpack(separate, backend.logprobs(separate), samples)
    batch = batch_of(samples, Policy(), max_tokens=30)
    report = backend.update(batch, Policy())
    new = unpack(batch.micro_batches, report.logprobs, samples)
    for before, now in zip(old, new, strict=True):
        assert np.abs(np.exp(now.astype(np.float64) - before) - 1.0).max(initial=0.0) < 1e-5


def test_metrics_are_summed_before_they_are_divided(
    model: Any, start: Callable[..., Any], samples: list[Any], batch_of: Any
) -> None:
    batch = batch_of(samples, Policy(), max_tokens=20)
    assert len(batch.micro_batches) > 2
    unmasked = sum(micro_batch.loss_mask.sum() for micro_batch in batch.micro_batches)
    batch.denominator = 10.0
    backend = start(model)
    report = backend.update(batch, Policy())
    logprobs = np.concatenate(report.logprobs)
    mask = np.concatenate([micro_batch.loss_mask for micro_batch in batch.micro_batches])
    advantages = np.concatenate([micro_batch.advantages for micro_batch in batch.micro_batches])
    assert report.metrics["ones"] == pytest.approx(unmasked / 10.0)
    assert report.metrics["mean"] == 2.0
    assert report.metrics["loss"] == pytest.approx(-(logprobs * advantages)[mask].sum() / 10.0, rel=1e-5)
    assert report.metrics["lr"] == 1e-3
    assert report.metrics["grad_norm"] > 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_learning_rate_of_zero_changes_no_bit(
    dtype: str, model: Any, start: Callable[..., Any], samples: list[Any], batch_of: Any, ranks_program: Any
) -> None:
    backend = start(model, dtype=dtype, lr=0.0, weight_decay=0.1)
    before = ranks_program.weights(backend)
    for _ in range(2):
        assert backend.update(batch_of(samples, Policy()), Policy()).metrics["grad_norm"] > 0
    after = ranks_program.weights(backend)
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


def test_updates_are_those_of_adamw_on_the_same_gradients(
    model: Any, start: Callable[..., Any], samples: list[Any], batch_of: Any, ranks_program: Any
) -> None:
    """Clipping, weight decay of matrices only, warm-up and decay of the rate, against torch on plain tensors."""
    rates = [0.5e-3, 1e-3, 1e-3, 0.5e-3 * (1 + math.cos(math.pi / 3)) + 0.0]
    backend = start(
        model, lr=1e-3, lr_schedule="cosine", lr_warmup_steps=2, total_updates=6, weight_decay=0.3, clip_grad=0.05
    )
    weights = ranks_program.weights(backend)
    adamw = torch.optim.AdamW(
        [
            {"params": [tensor for tensor in weights.values() if tensor.ndim > 1], "weight_decay": 0.3},
            {"params": [tensor for tensor in weights.values() if tensor.ndim == 1], "weight_decay": 0.0},
        ],
        betas=(0.9, 0.95),
        eps=1e-8,
    )
    batch = batch_of(samples, Policy())
    for rate in rates:
        backend._model.zero_grad_buffer()
        gradient = gradient_of(backend, ranks_program, batch, Policy())
        norm = math.sqrt(sum(float(part.double().pow(2).sum()) for part in gradient.values()))
        assert norm > 0.05
        for name, tensor in weights.items():
            tensor.grad = gradient[name] * (0.05 / (norm + 1e-6))
        for group in adamw.param_groups:
            group["lr"] = rate
        adamw.step()
        metrics = backend.update(batch, Policy()).metrics
        assert metrics["lr"] == pytest.approx(rate, rel=1e-9)
        assert metrics["grad_norm"] == pytest.approx(norm, rel=1e-5)
    for name, tensor in backend.weights():
        torch.testing.assert_close(tensor, weights[name], rtol=0, atol=2e-6)


def test_without_clipping_the_norm_is_still_told(
    model: Any, start: Callable[..., Any], samples: list[Any], batch_of: Any
) -> None:
    batch = batch_of(samples, Policy())
    norms = [start(model, clip_grad=clip).update(batch, Policy()).metrics["grad_norm"] for clip in (0.0, 0.01)]
    assert norms[0] == pytest.approx(norms[1])


def test_bfloat16_adds_up_steps_smaller_than_its_precision(
    model: Any, start: Callable[..., Any], samples: list[Any], batch_of: Any, ranks_program: Any
) -> None:
    """A step of 2e-5 is less than half the spacing of bfloat16 at 0.0625 and above; ten of them are more."""
    backend = start(model, dtype="bfloat16", lr=2e-5, adam_beta1=0.0, adam_beta2=0.0)
    name = "model.layers.0.mlp.down_proj.weight"
    before = ranks_program.weights(backend)[name]
    large = before.abs() > 0.0625
    backend.update(batch_of(samples, Policy()), Policy())
    assert torch.equal(ranks_program.weights(backend)[name][large], before[large])
    for _ in range(19):
        backend.update(batch_of(samples, Policy()), Policy())
    assert (ranks_program.weights(backend)[name][large] != before[large]).float().mean() > 0.5
    assert all(buffer.grad_data.dtype == torch.float32 for buffer in backend._model.buffers)


def test_a_batch_whose_mask_is_empty_changes_nothing_but_the_count(
    model: Any, start: Callable[..., Any], samples: list[Any], ranks_program: Any
) -> None:
    backend = start(model)
    before = ranks_program.weights(backend)
    (batch,) = build_update(samples, Policy(), max_tokens=4096, ranks=1) or []
    for micro_batch in batch.micro_batches:
        micro_batch.loss_mask[:] = False
    metrics = backend.update(batch, Policy()).metrics
    assert metrics["loss"] == metrics["grad_norm"] == metrics["mean"] == 0.0
    after = ranks_program.weights(backend)
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


@pytest.mark.parametrize(("scale", "told"), [(math.nan, "the loss of optimizer update 0 is nan")])
def test_a_loss_that_is_not_finite_stops_before_the_weights_change(
    scale: float,
    told: str,
    model: Any,
    start: Callable[..., Any],
    samples: list[Any],
    batch_of: Any,
    ranks_program: Any,
) -> None:
    backend = start(model)
    before = ranks_program.weights(backend)
    with pytest.raises(TrainerError, match="the loss of optimizer update 0 is nan") as error:
        backend.update(batch_of(samples, Policy()), Policy(math.nan))
    assert "\n" not in str(error.value)
    after = ranks_program.weights(backend)
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


def test_a_gradient_that_is_not_finite_stops_before_the_weights_change(
    model: Any, start: Callable[..., Any], samples: list[Any], batch_of: Any, ranks_program: Any
) -> None:
    class Overflowing(Policy):
        def loss(self, inputs: Any) -> LossOutput:
            """Finite, with an infinite slope: the square root of zero."""
            return LossOutput((inputs.logprobs.sum() * 0.0).abs().sqrt(), {})

    backend = start(model)
    before = ranks_program.weights(backend)
    with pytest.raises(TrainerError, match="the gradient norm of optimizer update 0 is nan"):
        backend.update(batch_of(samples, Policy()), Overflowing())
    after = ranks_program.weights(backend)
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


def test_the_reference_is_the_policy_at_the_start(
    model: Any, start: Callable[..., Any], samples: list[Any], batch_of: Any, packed: Any, ranks_program: Any
) -> None:
    backend = start(model, keep_reference=True)
    (at_start,) = backend.logprobs([packed])
    backend.update(batch_of(samples, Policy()), Policy())
    weights = ranks_program.weights(backend)
    (now,) = backend.logprobs([packed])
    (reference,) = backend.logprobs([packed], reference=True)
    assert np.array_equal(reference, at_start)
    assert not np.array_equal(now, at_start)
    after = ranks_program.weights(backend)
    assert all(torch.equal(after[name], tensor) for name, tensor in weights.items())


def test_a_reference_that_was_not_kept_is_told(model: Any, start: Callable[..., Any], packed: Any) -> None:
    with pytest.raises(TrainerError, match="the reference policy was not kept"):
        start(model).logprobs([packed], reference=True)


def test_sleep_frees_gradients_and_changes_no_update(
    model: Any, start: Callable[..., Any], samples: list[Any], batch_of: Any, ranks_program: Any
) -> None:
    results = []
    for sleeps in (False, True):
        backend = start(model)
        backend._context = replace(backend._context, accelerator=SleepyAccelerator())
        backend.update(batch_of(samples, Policy()), Policy())
        if sleeps:
            backend.sleep()
            assert all(buffer.grad_data.untyped_storage().size() == 0 for buffer in backend._model.buffers)
            backend.wake()
        backend.update(batch_of(samples, Policy()), Policy())
        results.append(ranks_program.weights(backend))
    assert all(torch.equal(results[0][name], results[1][name]) for name in results[0])


class SleepyAccelerator:
    """Says that memory can be freed."""

    can_sleep = True


def test_closing_twice_is_safe(model: Any, start: Callable[..., Any]) -> None:
    backend = start(model)
    assert backend.data_parallel() == (0, 1)
    backend.close()
    backend.close()
