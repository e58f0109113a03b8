"""What a trainer gives an algorithm's loss, made up but repeatable. Shapes follow `LossInputs`."""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from vime_core.plugins.interfaces import LossInputs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vime_core.plugins.interfaces import Needs

LENGTHS = (5, 3, 8)
"""Tokens of each sequence; the first two of each are its prompt."""

HOLE = 12
"""A response token that is masked out."""


def loss_inputs(needs: Needs, *, seed: int = 0) -> LossInputs:
    """Inputs on the policy that sampled: old and rollout log-probs are those of the current policy.

    Args:
        needs: what is not needed is None; `rollout_logprobs` are always there.
        seed: of the numbers.
    """
    import torch

    rng = torch.Generator().manual_seed(seed)
    tokens = sum(LENGTHS)
    logprobs = -torch.rand(tokens, generator=rng) - 0.05
    offsets = torch.tensor([0, *LENGTHS]).cumsum(0)
    position = torch.cat([torch.arange(length) for length in LENGTHS])
    mask = position >= 2
    mask[HOLE] = False
    reference = logprobs - 0.1 * torch.rand(tokens, generator=rng)
    entropy = torch.rand(tokens, generator=rng) + 0.1
    return LossInputs(
        logprobs=logprobs,
        entropy=entropy if needs.entropy else None,
        loss_mask=mask,
        advantages=torch.randn(tokens, generator=rng),
        rollout_logprobs=logprobs.clone(),
        old_logprobs=logprobs.clone() if needs.old_logprobs else None,
        ref_logprobs=reference if needs.ref_logprobs else None,
        cu_seqlens=offsets,
    )


def sequences(inputs: LossInputs) -> Iterator[LossInputs]:
    """Each sequence as a micro-batch of its own."""
    import torch

    names = [field.name for field in fields(inputs) if field.name != "cu_seqlens"]
    bounds = inputs.cu_seqlens.tolist()
    for start, end in pairwise(bounds):
        values = {name: getattr(inputs, name) for name in names}
        cut: dict[str, Any] = {name: None if value is None else value[start:end] for name, value in values.items()}
        yield LossInputs(**cut, cu_seqlens=torch.tensor([0, end - start]))


def poisoned(inputs: LossInputs) -> LossInputs:
    """The same inputs with nan outside the mask."""
    import torch

    names = [field.name for field in fields(inputs) if field.name not in ("cu_seqlens", "loss_mask")]
    values = {name: getattr(inputs, name) for name in names}
    changed = {
        name: torch.where(inputs.loss_mask, value, float("nan")) for name, value in values.items() if value is not None
    }
    return replace(inputs, **changed)
