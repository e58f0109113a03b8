"""A tensor map written out: which tensors a checkpoint holds, and their shapes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from vime_core.models.geometry import ModelGeometry, TensorRule


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of the model: a rule with its layer and expert filled in."""

    rule: TensorRule
    layer: int | None
    """None outside the layers."""
    expert: int | None
    """None outside experts."""
    hf_names: tuple[str, ...]
    """Names in the checkpoint, in the order of `rule.hf_shapes`."""
    stacked_name: str | None = None
    """`TensorRule.stacked_name`, filled in."""


def parameters(geometry: ModelGeometry, tensor_map: Sequence[TensorRule]) -> Iterator[Parameter]:
    """Every parameter once: those before the layers, layer by layer, then those after."""
    layered = [index for index, rule in enumerate(tensor_map) if rule.role.startswith("layer.")]
    first, last = (layered[0], layered[-1] + 1) if layered else (len(tensor_map), len(tensor_map))
    for rule in tensor_map[:first]:
        yield Parameter(rule, None, None, rule.hf_names)
    for layer in range(geometry.num_layers):
        for rule in tensor_map[first:last]:
            yield from _in_layer(geometry, rule, layer)
    for rule in tensor_map[last:]:
        yield Parameter(rule, None, None, rule.hf_names)


def tensor_shapes(geometry: ModelGeometry, tensor_map: Sequence[TensorRule]) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of the checkpoint, in the order of `parameters`."""
    return {
        name: shape
        for parameter in parameters(geometry, tensor_map)
        for name, shape in zip(parameter.hf_names, parameter.rule.hf_shapes, strict=True)
    }


def _in_layer(geometry: ModelGeometry, rule: TensorRule, layer: int) -> Iterator[Parameter]:
    experts = geometry.experts
    if rule.role.startswith("layer.mlp.") and experts is not None and layer not in experts.dense_layers:
        return
    if not rule.role.startswith("layer.moe."):
        yield Parameter(rule, layer, None, _filled(rule.hf_names, layer=layer))
    elif experts is not None and layer not in experts.dense_layers:
        indices: Iterable[int | None] = range(experts.num_experts) if ".expert." in rule.role else (None,)
        for expert in indices:
            stacked = None if rule.stacked_name is None else rule.stacked_name.format(layer=layer)
            yield Parameter(rule, layer, expert, _filled(rule.hf_names, layer=layer, expert=expert), stacked)


def _filled(names: tuple[str, ...], **values: int | None) -> tuple[str, ...]:
    return tuple(name.format(**values) for name in names)
