"""Log-probs and entropies of tokens from hidden states, a chunk of tokens at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The share of the vocabulary whose logits this tensor-parallel rank computes."""

    start: int
    """First token id of the share."""
    size: int
    """Tokens of the whole vocabulary; rows of the output weight past it are padding."""
    group: distributed.ProcessGroup | None
    """Tensor-parallel ranks; None for one."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """[T] each, float32, aligned at the target; 0 at the first token of each sequence."""

    logprobs: torch.Tensor
    entropy: torch.Tensor | None
    """-sum p log p of the distribution the token was drawn from."""


def token_logprobs(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    token_ids: torch.Tensor,
    position_ids: torch.Tensor,
    vocabulary: Vocabulary,
    *,
    temperature: float,
    chunk_tokens: int,
    entropy: bool,
) -> TokenLogprobs:
    """Log-softmax of logits / temperature at the tokens of a packed micro-batch, differentiable.

    Args:
        hidden: [T, hidden] after the final norm.
        weight: [V of this rank, hidden].
        token_ids: [T].
        position_ids: [T], 0 at the first token of each sequence.
        vocabulary: which tokens the rows of `weight` stand for.
        temperature: divides the logits.
        chunk_tokens: most tokens whose logits exist at one time, forward and backward.
        entropy: whether entropies are wanted.
    """
    logprobs, entropies = _ChunkedLogprobs.apply(
        hidden[:-1], weight, token_ids[1:], vocabulary, 1.0 / temperature, chunk_tokens, entropy
    )
    follows = position_ids != 0
    return TokenLogprobs(_at_target(logprobs, follows), _at_target(entropies, follows) if entropy else None)


def _at_target(values: torch.Tensor, follows: torch.Tensor) -> torch.Tensor:
    """[T-1] values of tokens 1 to T-1 to [T]; 0 where a token follows no other of its own sequence."""
    shifted = functional.pad(values, (1, 0))
    return torch.where(follows, shifted, torch.zeros_like(shifted))


class _ChunkedLogprobs(torch.autograd.Function):
    """log p(target) and entropy, with p = softmax(scale * hidden @ weight.T).

    Per token with log-prob l, entropy h and incoming gradients g and e, the gradient of logit j is

        scale * (g * ([j is the target] - p_j) - e * p_j * (log p_j + h))

    Logits are computed again in the backward pass; the weight's gradient is summed over chunks in float32.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        targets: torch.Tensor,
        vocabulary: Vocabulary,
        scale: float,
        chunk_tokens: int,
        with_entropy: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        count = len(targets)
        log_norm = hidden.new_empty(count, dtype=_precision(hidden))
        logprobs = torch.empty_like(log_norm)
        entropy = torch.zeros_like(log_norm)
        for chunk in _chunks(count, chunk_tokens):
            logits = _logits(hidden[chunk], weight, vocabulary, scale)
            log_norm[chunk] = _log_norm(logits, vocabulary)
            logprobs[chunk] = _target_logits(logits, targets[chunk], vocabulary) - log_norm[chunk]
            if with_entropy:
                mean = _reduced(
                    (logits.sub(log_norm[chunk, None]).exp() * logits.clamp_min(_LOWEST)).sum(-1), vocabulary
                )
                entropy[chunk] = log_norm[chunk] - mean
        ctx.save_for_backward(hidden, weight, targets, log_norm, entropy)
        ctx.vocabulary, ctx.scale, ctx.chunk_tokens, ctx.with_entropy = vocabulary, scale, chunk_tokens, with_entropy
        if not with_entropy:
            ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, grad_logprobs: torch.Tensor, grad_entropy: torch.Tensor) -> tuple[Any, ...]:
        hidden, weight, targets, log_norm, entropy = ctx.saved_tensors
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros_like(weight, dtype=_precision(weight))
        for chunk in _chunks(len(targets), ctx.chunk_tokens):
            logits = _logits(hidden[chunk], weight, ctx.vocabulary, ctx.scale)
            log_p = logits.sub_(log_norm[chunk, None])
            grad = log_p.exp()
            if ctx.with_entropy:
                lowered = log_p.clamp_min_(_LOWEST).add_(entropy[chunk, None])
                grad *= lowered.mul_(grad_entropy[chunk, None]).add_(grad_logprobs[chunk, None])
                grad.neg_()
            else:
                grad.mul_(-grad_logprobs[chunk, None])
            _add_at_targets(grad, targets[chunk], grad_logprobs[chunk], ctx.vocabulary)
            grad = grad.mul_(ctx.scale).to(weight.dtype)
            torch.mm(grad, weight, out=grad_hidden[chunk])
            grad_weight += grad.t() @ hidden[chunk]
        return grad_hidden, grad_weight.to(weight.dtype), None, None, None, None, None


_LOWEST = -1e30
"""Stands for the logarithm of zero where it is multiplied by zero: padding of the vocabulary."""


def _precision(tensor: torch.Tensor) -> torch.dtype:
    """float32, or float64 when the model is."""
    return torch.promote_types(tensor.dtype, torch.float32)


def _chunks(count: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, count)) for start in range(0, count, size))


def _logits(hidden: torch.Tensor, weight: torch.Tensor, vocabulary: Vocabulary, scale: float) -> torch.Tensor:
    """[n, V of this rank], scaled; padding of the vocabulary has no probability."""
    logits = functional.linear(hidden, weight).to(_precision(hidden)).mul_(scale)
    padding = vocabulary.start + len(weight) - vocabulary.size
    if padding > 0:
        logits[:, -padding:] = float("-inf")
    return logits


def _log_norm(logits: torch.Tensor, vocabulary: Vocabulary) -> torch.Tensor:
    """[n] logarithm of the sum of exponentials over the whole vocabulary."""
    if vocabulary.group is None:
        return logits.logsumexp(-1)
    largest = logits.amax(-1)
    distributed.all_reduce(largest, distributed.ReduceOp.MAX, vocabulary.group)
    return _reduced(logits.sub(largest[:, None]).exp_().sum(-1), vocabulary).log_().add_(largest)


def _target_logits(logits: torch.Tensor, targets: torch.Tensor, vocabulary: Vocabulary) -> torch.Tensor:
    """[n] logit of each target, from the rank that has it."""
    columns, here = _columns(logits, targets, vocabulary)
    found = logits.gather(1, columns[:, None]).squeeze(1)
    return _reduced(torch.where(here, found, torch.zeros_like(found)), vocabulary)


def _add_at_targets(grad: torch.Tensor, targets: torch.Tensor, values: torch.Tensor, vocabulary: Vocabulary) -> None:
    columns, here = _columns(grad, targets, vocabulary)
    grad.scatter_add_(1, columns[:, None], torch.where(here, values, torch.zeros_like(values))[:, None])


def _columns(logits: torch.Tensor, targets: torch.Tensor, vocabulary: Vocabulary) -> tuple[torch.Tensor, torch.Tensor]:
    """[n] column of each target, and whether it is one of this rank's."""
    columns = targets - vocabulary.start
    here = (columns >= 0) & (columns < logits.shape[1])
    return torch.where(here, columns, torch.zeros_like(columns)), here


def _reduced(values: torch.Tensor, vocabulary: Vocabulary) -> torch.Tensor:
    """Sum over the tensor-parallel ranks."""
    if vocabulary.group is not None:
        distributed.all_reduce(values, group=vocabulary.group)
    return values
