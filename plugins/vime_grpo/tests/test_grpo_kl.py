import math

import pytest
import torch

from vime_grpo.kl import ESTIMATORS

FORMULAS = {
    "k1": lambda r: -math.log(r),
    "k2": lambda r: math.log(r) ** 2 / 2,
    "k3": lambda r: (r - 1) - math.log(r),
}
"""Schulman's formulas of r = p_reference / p_policy."""


def distributions():
    generator = torch.Generator().manual_seed(3)
    policy = torch.randn(6, generator=generator, dtype=torch.float64).requires_grad_()
    reference = torch.randn(6, generator=generator, dtype=torch.float64).log_softmax(-1)
    return policy, reference


def gradient(value, policy):
    (result,) = torch.autograd.grad(value, policy)
    return result


def expected_gradient_of(estimator):
    """E over tokens of the policy of the estimator's gradient, summed over the vocabulary."""
    policy, reference = distributions()
    logprobs = policy.log_softmax(-1)
    return gradient((logprobs.detach().exp() * estimator(logprobs, reference)).sum(), policy)


@pytest.mark.parametrize("name", sorted(ESTIMATORS))
def test_values_equal_the_formulas(name):
    policies = [-0.1, -1.0, -2.5, -7.0]
    references = [-0.4, -1.0, -2.0, -3.0]
    found = ESTIMATORS[name](
        torch.tensor(policies, dtype=torch.float64), torch.tensor(references, dtype=torch.float64)
    ).tolist()
    expected = [FORMULAS[name](math.exp(b - a)) for a, b in zip(policies, references, strict=True)]
    assert found == pytest.approx(expected, rel=1e-12, abs=1e-15)


@pytest.mark.parametrize("name", sorted(ESTIMATORS))
def test_gradcheck(name):
    policy, reference = distributions()
    assert torch.autograd.gradcheck(lambda logits: ESTIMATORS[name](logits.log_softmax(-1), reference), policy)


@pytest.mark.parametrize("name", ["k1", "k3"])
def test_unbiased_estimators_average_to_the_divergence(name):
    policy, reference = distributions()
    logprobs = policy.detach().log_softmax(-1)
    divergence = (logprobs.exp() * (logprobs - reference)).sum()
    torch.testing.assert_close((logprobs.exp() * ESTIMATORS[name](logprobs, reference)).sum(), divergence)


def test_k1_as_a_loss_pulls_nowhere():
    torch.testing.assert_close(
        expected_gradient_of(ESTIMATORS["k1"]), torch.zeros(6, dtype=torch.float64), rtol=0, atol=1e-15
    )


def test_k2_as_a_loss_descends_the_reverse_divergence():
    policy, reference = distributions()
    logprobs = policy.log_softmax(-1)
    reverse = gradient((logprobs.exp() * (logprobs - reference)).sum(), policy)
    torch.testing.assert_close(expected_gradient_of(ESTIMATORS["k2"]), reverse, rtol=1e-12, atol=1e-14)


def test_k3_as_a_loss_descends_the_forward_divergence():
    policy, reference = distributions()
    logprobs = policy.log_softmax(-1)
    forward = gradient((reference.exp() * (reference - logprobs)).sum(), policy)
    torch.testing.assert_close(expected_gradient_of(ESTIMATORS["k3"]), forward, rtol=1e-12, atol=1e-14)


def test_k3_in_float32_keeps_a_small_divergence():
    found = ESTIMATORS["k3"](torch.tensor([-1.0]), torch.tensor([-1.0001]))
    assert found.item() == pytest.approx(0.5e-8, rel=2e-2)
    assert found.item() >= 0
