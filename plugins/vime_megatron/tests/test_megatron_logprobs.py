from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from vime_megatron.logprobs import TokenLogprobs, Vocabulary, token_logprobs


def plain(
    hidden: torch.Tensor, weight: torch.Tensor, token_ids: torch.Tensor, positions: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """log_softmax of all logits, and the entropy of all tokens."""
    distribution = torch.log_softmax(hidden @ weight.T / temperature, dim=-1)
    logprobs = torch.zeros(len(token_ids), dtype=hidden.dtype) + 0.0 * (hidden.sum() + weight.sum())
    entropy = logprobs.clone()
    for t in range(1, len(token_ids)):
        if positions[t] != 0:
            logprobs[t] = distribution[t - 1, token_ids[t]]
            entropy[t] = -(distribution[t - 1].exp() * distribution[t - 1]).sum()
    return logprobs, entropy


def chunked(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    token_ids: torch.Tensor,
    positions: torch.Tensor,
    temperature: float = 1.0,
    **options: Any,
) -> TokenLogprobs:
    settings = {"chunk_tokens": 4, "entropy": True, **options}
    vocabulary = settings.pop("vocabulary", Vocabulary(0, len(weight), None))
    return token_logprobs(hidden, weight, token_ids, positions, vocabulary, temperature=temperature, **settings)


def tensors(count: int, vocabulary: int, width: int, seed: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(count, width, generator=generator, dtype=torch.float64).requires_grad_()
    weight = torch.randn(vocabulary, width, generator=generator, dtype=torch.float64).requires_grad_()
    token_ids = torch.randint(0, vocabulary, (count,), generator=generator)
    return hidden, weight, token_ids


@given(
    lengths=st.lists(st.integers(1, 7), min_size=1, max_size=5),
    chunk_tokens=st.integers(1, 40),
    temperature=st.sampled_from([0.5, 1.0, 1.7]),
    seed=st.integers(0, 100),
)
@settings(max_examples=60, deadline=None)
def test_values_and_gradients_equal_log_softmax(
    lengths: list[int], chunk_tokens: int, temperature: float, seed: int
) -> None:
    hidden, weight, token_ids = tensors(sum(lengths), 11, 5, seed)
    positions = torch.cat([torch.arange(length) for length in lengths])
    found = chunked(hidden, weight, token_ids, positions, temperature, chunk_tokens=chunk_tokens)
    logprobs, entropy = plain(hidden, weight, token_ids, positions, temperature)
    assert found.entropy is not None
    torch.testing.assert_close(found.logprobs, logprobs)
    torch.testing.assert_close(found.entropy, entropy)
    factors = torch.randn(2, sum(lengths), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    ours = torch.autograd.grad((torch.stack([found.logprobs, found.entropy]) * factors).sum(), (hidden, weight))
    theirs = torch.autograd.grad((torch.stack([logprobs, entropy]) * factors).sum(), (hidden, weight))
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other)


def test_gradients_of_float64() -> None:
    hidden, weight, token_ids = tensors(6, 7, 3, 0)
    positions = torch.tensor([0, 1, 2, 0, 1, 2])

    def both(hidden: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = chunked(hidden, weight, token_ids, positions, 0.8)
        assert found.entropy is not None
        return found.logprobs, found.entropy

    assert torch.autograd.gradcheck(both, (hidden, weight))


def test_without_entropy_the_gradient_is_the_same() -> None:
    hidden, weight, token_ids = tensors(9, 7, 3, 0)
    positions = torch.arange(9)
    gradients = [
        torch.autograd.grad(chunked(hidden, weight, token_ids, positions, entropy=entropy).logprobs.sum(), weight)[0]
        for entropy in (True, False)
    ]
    torch.testing.assert_close(*gradients)
    assert chunked(hidden, weight, token_ids, positions, entropy=False).entropy is None


def test_padding_of_the_vocabulary_has_no_probability_and_no_gradient() -> None:
    hidden, weight, token_ids = tensors(9, 7, 3, 0)
    positions = torch.arange(9)
    padded = torch.cat([weight.detach(), 50.0 * torch.ones(3, 3, dtype=torch.float64)]).requires_grad_()
    expected = chunked(hidden, weight, token_ids, positions)
    found = chunked(hidden, padded, token_ids, positions, vocabulary=Vocabulary(0, 7, None))
    assert found.entropy is not None
    assert expected.entropy is not None
    torch.testing.assert_close(found.logprobs, expected.logprobs)
    torch.testing.assert_close(found.entropy, expected.entropy)
    (gradient,) = torch.autograd.grad((found.logprobs + found.entropy).sum(), padded)
    (expected_gradient,) = torch.autograd.grad((expected.logprobs + expected.entropy).sum(), weight)
    torch.testing.assert_close(gradient[:7], expected_gradient)
    assert gradient[7:].abs().max() == 0


def test_one_token_gives_zero_attached_to_the_graph() -> None:
    hidden, weight, token_ids = tensors(1, 7, 3, 0)
    found = chunked(hidden, weight, token_ids, torch.zeros(1, dtype=torch.int64))
    assert found.logprobs.tolist() == [0.0]
    (gradient,) = torch.autograd.grad(found.logprobs.sum(), weight)
    assert gradient.abs().max() == 0


def test_bfloat16_gives_float32_of_the_rounded_logits() -> None:
    hidden, weight, token_ids = tensors(6, 11, 5, 0)
    hidden, weight = hidden.detach().bfloat16(), weight.detach().bfloat16()
    found = chunked(hidden, weight, token_ids, torch.arange(6), entropy=False).logprobs
    logits = torch.nn.functional.linear(hidden, weight).float()
    expected = torch.log_softmax(logits, -1)[:-1].gather(1, token_ids[1:, None]).squeeze(1)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found[1:], expected)


class LargestResult(TorchDispatchMode):
    """Remembers the most elements that a result of any operation had."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        self.elements = max([self.elements, *sizes])
        return result


@pytest.mark.parametrize("entropy", [False, True])
def test_logits_of_all_tokens_never_exist(entropy: bool) -> None:
    count, vocabulary, width, chunk_tokens = 512, 512, 8, 32
    hidden, weight, token_ids = tensors(count, vocabulary, width, 0)
    with LargestResult() as largest:
        found = chunked(hidden, weight, token_ids, torch.arange(count), chunk_tokens=chunk_tokens, entropy=entropy)
        loss = found.logprobs.sum() if found.entropy is None else (found.logprobs + found.entropy).sum()
        loss.backward()
    assert hidden.grad is not None
    assert largest.elements == chunk_tokens * vocabulary
