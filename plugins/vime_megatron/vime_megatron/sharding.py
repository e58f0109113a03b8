"""Checkpoint tensors to the share of one tensor-parallel rank, and all shares back to checkpoint tensors."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vime_core.models.geometry import ModelGeometry, TensorRule


def shard(
    rule: TensorRule, parts: Sequence[torch.Tensor], geometry: ModelGeometry, rank: int, size: int
) -> torch.Tensor:
    """The share of one rank of Megatron's parameter.

    `qkv`: for each query group its query heads, its key head and its value head; whole groups a rank. `gate_up`: the
    rank's rows of gate, then its rows of up. A vocabulary that does not divide is padded with rows of zeros.

    Args:
        rule: of the parameter.
        parts: the tensors of the checkpoint, of `rule.hf_shapes`.
        geometry: of the model.
        rank: among the ranks that share the parameter out.
        size: their number.
    """
    if rule.shard == "none" or size == 1:
        return fuse(rule, parts, geometry)
    if rule.transform == "gate_up":
        return torch.cat([part.chunk(size)[rank] for part in parts])
    fused = fuse(rule, parts, geometry)
    if rule.shard == "columns":
        return fused.chunk(size, dim=1)[rank].contiguous()
    padding = -len(fused) % size
    return functional.pad(fused, (0, 0, 0, padding)).chunk(size)[rank] if padding else fused.chunk(size)[rank]


def merge(rule: TensorRule, shares: Sequence[torch.Tensor], geometry: ModelGeometry) -> list[torch.Tensor]:
    """Undo `shard`: contiguous tensors of the rule's shapes, views where that is possible.

    Args:
        rule: of the parameter.
        shares: those of all ranks, in order; one where the parameter is not shared out.
        geometry: of the model.
    """
    if rule.shard == "none" or len(shares) == 1:
        return split(rule, shares[0], geometry)
    if rule.transform == "gate_up":
        halves = [share.chunk(2) for share in shares]
        return [torch.cat(part) for part in zip(*halves, strict=True)]
    if rule.shard == "columns":
        return split(rule, torch.cat(list(shares), dim=1), geometry)
    return split(rule, torch.cat(list(shares)), geometry)


def shard_shape(rule: TensorRule, size: int) -> tuple[int, ...]:
    """Shape of one share, the same on every rank."""
    rows = sum(shape[0] for shape in rule.hf_shapes)
    full = (rows, *rule.hf_shapes[0][1:])
    if rule.shard == "none" or size == 1:
        return full
    if rule.shard == "columns":
        return (rows, full[1] // size)
    return (math.ceil(rows / size), *full[1:])


def fuse(rule: TensorRule, parts: Sequence[torch.Tensor], geometry: ModelGeometry) -> torch.Tensor:
    """Checkpoint tensors to Megatron's parameter on one rank."""
    if rule.transform == "copy":
        return parts[0]
    if rule.transform == "gate_up":
        return torch.cat(list(parts))
    by_group = [part.reshape(geometry.num_kv_heads, -1, *part.shape[1:]) for part in parts]
    return torch.cat(by_group, dim=1).flatten(0, 1)


def split(rule: TensorRule, weight: torch.Tensor, geometry: ModelGeometry) -> list[torch.Tensor]:
    """Undo `fuse`; rows of padding are left out."""
    if rule.transform == "copy":
        return [weight[: rule.hf_shapes[0][0]]]
    rows = [shape[0] for shape in rule.hf_shapes]
    if rule.transform == "gate_up":
        return list(weight.split(rows))
    groups = geometry.num_kv_heads
    by_group = weight.view(groups, -1, *weight.shape[1:]).split([count // groups for count in rows], dim=1)
    return [part.flatten(0, 1).contiguous() for part in by_group]
