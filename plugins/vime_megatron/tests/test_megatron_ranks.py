"""Two data-parallel ranks over gloo, in processes of their own; one start for all tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from vime_core.data.batching import build_update, pack
from vime_grpo.config import GRPOConfig
from vime_grpo.grpo import GRPO
from vime_megatron.logprobs import Vocabulary, token_logprobs

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.ranks

DEADLINE_S = 240
CONFIGS = {"tokens": GRPOConfig(), "sequences": GRPOConfig(loss_agg="seq_mean", entropy_coef=0.03)}
SETTINGS: dict[str, Any] = {"lr_schedule": "linear", "total_updates": 8, "weight_decay": 0.1}
DTYPES = ("float32", "bfloat16")


def vocabulary_inputs() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    return {
        "hidden": torch.randn(9, 5, generator=generator, dtype=torch.float64),
        "weight": torch.randn(12, 5, generator=generator, dtype=torch.float64),
        "token_ids": torch.randint(0, 11, (9,), generator=generator),
        "position_ids": torch.tensor([0, 1, 2, 3, 0, 1, 0, 1, 2]),
        "size": 11,
    }


def batches(samples: list[Any], algorithm: GRPO, ranks: int) -> list[Any]:
    built = build_update(samples, algorithm, max_tokens=24, ranks=ranks)
    assert built is not None
    return built


def masked_on_first_rank(samples: list[Any]) -> list[Any]:
    update = batches(samples, GRPO(GRPOConfig()), 2)
    for micro_batch in update[0].micro_batches:
        micro_batch.loss_mask[:] = False
    return update


def job(context: Callable[..., Any], model: Any, samples: list[Any], folder: Path) -> dict[str, Any]:
    scenarios: dict[str, Any] = {"vocabulary": vocabulary_inputs()}
    for name, config in CONFIGS.items():
        algorithm = GRPO(config)
        update = ("update", batches(samples, algorithm, 2), algorithm)
        scenarios[name] = [(context(model), [update, ("gradients",), ("weights",)])]
    algorithm = GRPO(GRPOConfig())
    scenarios["masked"] = [(context(model), [("update", masked_on_first_rank(samples), algorithm), ("gradients",)])]
    halves = [pack(samples, range(4)), pack(samples, range(4, len(samples)))]
    scenarios["logprobs"] = [
        (context(model, keep_reference=True), [("data_parallel",), ("logprobs", [[halves[0]], [halves[1]]])])
    ]
    update = ("update", batches(samples, algorithm, 2), algorithm)
    for dtype in DTYPES:
        saved = folder / dtype
        settings = {**SETTINGS, "dtype": dtype}
        scenarios[f"resume {dtype}"] = [
            (context(model, **settings), [update, update, ("save", saved), update, update, ("weights",)]),
            (context(model, **settings), [("load", saved), update, update, ("weights",)]),
        ]
    return scenarios


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def results(
    folder: Path, make_context: Callable[..., Any], model: Any, samples: list[Any], ranks_program: Any
) -> list[dict[str, Any]]:
    """What each of two ranks found."""
    found = ranks_program.run_ranks(folder, job(make_context, model, samples, folder), 2, deadline_s=DEADLINE_S)
    warned = [line for line in (folder / "errors_0.txt").read_text().splitlines() if "Warning" in line]
    assert not warned
    return list(found)


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    for name, gradient in expected.items():
        error = (found[name] - gradient).norm() / gradient.norm()
        assert error < 2e-5, (name, error.item())


@pytest.mark.parametrize("name", CONFIGS)
def test_two_ranks_find_the_gradients_and_metrics_of_one(
    name: str,
    results: list[dict[str, Any]],
    model: Any,
    start: Callable[..., Any],
    samples: list[Any],
    ranks_program: Any,
) -> None:
    algorithm = GRPO(CONFIGS[name])
    backend = start(model)
    report = backend.update(batches(samples, algorithm, 1)[0], algorithm)
    gradients = ranks_program.gradients(backend)
    for rank in range(2):
        theirs, their_gradients, _ = results[rank][name][0]
        assert_same(their_gradients, gradients)
        assert theirs.metrics.keys() == report.metrics.keys()
        for metric, value in report.metrics.items():
            assert theirs.metrics[metric] == pytest.approx(value, rel=1e-5, abs=1e-7), metric


@pytest.mark.parametrize("name", CONFIGS)
def test_both_ranks_hold_the_same_weights(name: str, results: list[dict[str, Any]]) -> None:
    first, second = (results[rank][name][0] for rank in range(2))
    assert first[0].metrics == second[0].metrics
    assert all(torch.equal(tensor, second[2][key]) for key, tensor in first[2].items())


def test_a_rank_whose_mask_is_empty_takes_part(
    results: list[dict[str, Any]], model: Any, start: Callable[..., Any], samples: list[Any], ranks_program: Any
) -> None:
    backend = start(model)
    algorithm = GRPO(GRPOConfig())
    first, second = masked_on_first_rank(samples)
    first.micro_batches += second.micro_batches
    backend.update(first, algorithm)
    assert_same(results[0]["masked"][0][1], ranks_program.gradients(backend))


def test_each_rank_gives_the_logprobs_of_its_own_samples(
    results: list[dict[str, Any]], model: Any, start: Callable[..., Any], packed: Any
) -> None:
    (expected,) = start(model).logprobs([packed])
    assert [results[rank]["logprobs"][0][0] for rank in range(2)] == [(0, 2), (1, 2)]
    found = np.concatenate([results[rank]["logprobs"][0][1][0] for rank in range(2)])
    assert np.abs(found - expected).max() < 1e-6


@pytest.mark.parametrize("dtype", DTYPES)
def test_two_ranks_resume_bit_for_bit(dtype: str, results: list[dict[str, Any]]) -> None:
    for rank in range(2):
        went_on, resumed = results[rank][f"resume {dtype}"]
        assert [report.metrics for report in resumed[1:3]] == [report.metrics for report in went_on[3:5]]
        assert all(torch.equal(resumed[3][name], tensor) for name, tensor in went_on[5].items())


def test_one_rank_resumes_what_two_saved(
    results: list[dict[str, Any]], folder: Path, model: Any, start: Callable[..., Any], samples: list[Any]
) -> None:
    algorithm = GRPO(GRPOConfig())
    backend = start(model, **SETTINGS)
    backend.load(folder / "float32")
    expected = results[0]["resume float32"][0][3].metrics
    found = backend.update(batches(samples, algorithm, 1)[0], algorithm).metrics
    assert found["lr"] == expected["lr"]
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-4, abs=1e-6)
    assert found["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-4)


def test_logprobs_of_a_vocabulary_shared_out_over_ranks(results: list[dict[str, Any]]) -> None:
    """The shares are those of tensor parallelism, the last one padded."""
    inputs = vocabulary_inputs()
    hidden, weight = (inputs[name].clone().requires_grad_() for name in ("hidden", "weight"))
    values = token_logprobs(
        hidden,
        weight,
        inputs["token_ids"],
        inputs["position_ids"],
        Vocabulary(0, inputs["size"], None),
        temperature=0.7,
        chunk_tokens=9,
        entropy=True,
    )
    assert values.entropy is not None
    factors = torch.arange(9, dtype=torch.float64)
    (values.logprobs * factors + values.entropy * factors.flip(0)).sum().backward()
    for rank in range(2):
        found = results[rank]["vocabulary"]
        torch.testing.assert_close(found["logprobs"], values.logprobs.detach())
        torch.testing.assert_close(found["entropy"], values.entropy.detach())
        torch.testing.assert_close(found["hidden"], hidden.grad)
        torch.testing.assert_close(found["weight"], weight.grad.chunk(2)[rank])
