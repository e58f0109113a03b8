"""Parameters of one trainer rank, and the bytes of weights, gradients and optimizer that follow from them: exact."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from vime_core.models.tensors import parameters

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from vime_core.models.geometry import ModelGeometry, TensorRule
    from vime_core.planning.layout import TrainLayout

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
GRADIENT_BYTES = 4
"""Gradients are summed and reduced in float32."""
START_ALIGNMENT = 64
"""Elements at whose multiples a parameter starts in Megatron's buffers (param_and_grad_buffer.py:665 of 0.16.1)."""
BUFFER_ALIGNMENT = 128
"""The buffer's length is a multiple of this and of the data-parallel size (param_and_grad_buffer.py:654)."""


@dataclass(frozen=True, slots=True)
class RankParameters:
    """Elements of each parameter of one rank."""

    dense: tuple[int, ...]
    """Of what every data-parallel replica has."""
    expert: tuple[int, ...]
    """Of experts."""

    @property
    def total(self) -> int:
        """Elements of all."""
        return sum(self.dense) + sum(self.expert)


@dataclass(frozen=True, slots=True)
class StateBytes:
    """What a rank holds from step to step."""

    weights: int
    gradients: int
    optimizer: int
    optimizer_step: int
    """Needed on top while the optimizer steps."""


def rank_parameters(
    geometry: ModelGeometry, tensor_map: Sequence[TensorRule], layout: TrainLayout, stage: int
) -> RankParameters:
    """The parameters of one rank of a pipeline stage; all its ranks have as many."""
    first = sum(layout.stage_layers[:stage])
    layers = range(first, first + layout.stage_layers[stage])
    last = layout.pipeline - 1
    dense: list[int] = []
    expert: list[int] = []
    for item in parameters(geometry, tensor_map):
        role = item.rule.role
        if item.layer is not None:
            here = item.layer in layers
        elif role == "embedding":
            here = stage == 0 or (stage == last and geometry.tied_embeddings)
        else:
            here = stage == last
        if not here:
            continue
        if item.expert is None:
            dense.append(share(item.rule, layout.tensor))
        elif item.expert < geometry_experts(geometry) // layout.expert:
            expert.append(share(item.rule, layout.expert_tensor))
    return RankParameters(tuple(dense), tuple(expert))


def share(rule: TensorRule, ranks: int) -> int:
    """Elements of one rank's share of a parameter; rows that do not divide are padded."""
    rows, rest = sum(shape[0] for shape in rule.hf_shapes), math.prod(rule.hf_shapes[0][1:])
    if rule.shard == "none":
        return rows * rest
    return math.ceil(rows / ranks) * rest if rule.shard == "rows" else rows * rest // ranks


def geometry_experts(geometry: ModelGeometry) -> int:
    """Experts of a sparse layer."""
    return geometry.experts.num_experts if geometry.experts else 0


def state_bytes(held: RankParameters, layout: TrainLayout, dtype: str) -> StateBytes:
    """Bytes of Megatron's distributed mixed-precision optimizer (arXiv:1910.02054, stage 1).

    Every parameter has a weight in `dtype` and a float32 gradient on each rank. Adam's two moments, and a float32
    master copy where `dtype` is another, exist once among data-parallel ranks: the rank with most is counted. While it
    steps, torch's AdamW takes the roots of all second moments at one time: 4 more bytes of each.
    """
    buffers = [
        (held.dense, layout.data_parallel),
        (held.expert, layout.expert_data_parallel),
    ]
    laid_out = [(lay_out(sizes, replicas), replicas) for sizes, replicas in buffers if sizes]
    elements = sum(ends[-1][1] for ends, _ in laid_out)
    owned = sum(largest_part(ends, replicas) for ends, replicas in laid_out)
    moments = 8 if dtype == "float32" else 12
    return StateBytes(
        weights=elements * DTYPE_BYTES[dtype],
        gradients=elements * GRADIENT_BYTES,
        optimizer=owned * moments,
        optimizer_step=owned * 4,
    )


def lay_out(sizes: Iterable[int], replicas: int) -> list[tuple[int, int]]:
    """(start, end) of each parameter in a buffer, and at last (end, end of the buffer)."""
    places, end = [], 0
    for size in sizes:
        start = _pad(end, START_ALIGNMENT)
        end = start + size
        places.append((start, end))
    return [*places, (end, _pad(end, math.lcm(replicas, BUFFER_ALIGNMENT)))]


def largest_part(places: Sequence[tuple[int, int]], replicas: int) -> int:
    """Most elements of parameters that one data-parallel rank owns: each owns an equal stretch of the buffer."""
    length = places[-1][1] // replicas
    stretches = ((end - length, end) for end in accumulate([length] * replicas))
    return max(
        sum(max(0, min(end, stop) - max(start, begin)) for begin, stop in places[:-1]) for start, end in stretches
    )


def _pad(value: int, multiple: int) -> int:
    return math.ceil(value / multiple) * multiple
