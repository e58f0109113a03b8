"""Checkpoints that hold one tensor for all experts of a layer, as transformers 5 keeps them, read expert by expert."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from vime_core.errors import ModelError
from vime_core.models.checkpoint import SafetensorsFolder, StackedPart, TensorInfo
from vime_core.models.tensors import parameters

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from vime_core.models.geometry import ModelGeometry, TensorRule
    from vime_core.models.tensors import Parameter


def open_weights(path: Path, geometry: ModelGeometry, tensor_map: Sequence[TensorRule]) -> SafetensorsFolder:
    """The weights of a folder by the names of the tensor map, whichever of its two spellings the folder has.

    Raises:
        ModelError: when weights are missing or damaged, or a stacked tensor is not of the shape that the map asks for.
    """
    folder = SafetensorsFolder(path)
    folder.tensors = unstacked(path, folder.tensors, geometry, tensor_map)
    return folder


def unstacked(
    path: Path, tensors: Mapping[str, TensorInfo], geometry: ModelGeometry, tensor_map: Sequence[TensorRule]
) -> dict[str, TensorInfo]:
    """The tensors with each stacked one replaced by its parts, one an expert and name of the rule."""
    found = dict(tensors)
    for parameter in parameters(geometry, tensor_map):
        stacked = parameter.stacked_name
        if stacked is None or stacked not in tensors:
            continue
        info = tensors[stacked]
        experts = geometry.experts.num_experts if geometry.experts else 0
        shapes = parameter.rule.hf_shapes
        wanted = (experts, sum(shape[0] for shape in shapes), *shapes[0][1:])
        if info.shape != wanted:
            raise ModelError(
                f"{path}: tensor {stacked} has shape {list(info.shape)}, config.json asks for {list(wanted)}; "
                "config.json and weights are of different models"
            )
        found.pop(stacked, None)
        found |= _parts(parameter, stacked, info)
    return found


def _parts(parameter: Parameter, stacked: str, info: TensorInfo) -> Iterator[tuple[str, TensorInfo]]:
    shapes = parameter.rule.hf_shapes
    bounds = pairwise(accumulate((shape[0] for shape in shapes), initial=0))
    for name, shape, (start, stop) in zip(parameter.hf_names, shapes, bounds, strict=True):
        yield name, TensorInfo(info.file, info.dtype, shape, StackedPart(stacked, parameter.expert or 0, start, stop))
