"""Weights in and out: Hugging Face tensors to Megatron's parameters and back, by one tensor map."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from vime_core.errors import ModelError
from vime_core.models.checkpoint import SafetensorsFolder
from vime_core.models.tensors import parameters

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from vime_core.models.geometry import ModelGeometry, TensorRule
    from vime_core.models.tensors import Parameter
    from vime_megatron.model import PolicyModel

MEGATRON_NAMES = {
    "embedding": "embedding.word_embeddings.weight",
    "layer.input_norm": "input_layernorm.weight",
    "layer.attention.qkv": "self_attention.linear_qkv.weight",
    "layer.attention.q_norm": "self_attention.q_layernorm.weight",
    "layer.attention.k_norm": "self_attention.k_layernorm.weight",
    "layer.attention.out": "self_attention.linear_proj.weight",
    "layer.post_attention_norm": "pre_mlp_layernorm.weight",
    "layer.mlp.gate_up": "mlp.linear_fc1.weight",
    "layer.mlp.down": "mlp.linear_fc2.weight",
    "final_norm": "decoder.final_layernorm.weight",
    "output": "output_layer.weight",
}
"""Role of a tensor rule to Megatron's parameter: within its layer for roles of layers, else within the model."""


class WeightMap:
    """The parameters of one model, each with the checkpoint tensors that it stands for."""

    def __init__(self, model: PolicyModel, geometry: ModelGeometry, tensor_map: Sequence[TensorRule]) -> None:
        """Find the parameter of every rule.

        Raises:
            ModelError: for a role that is not known here, or a parameter that no rule fills.
        """
        self._geometry = geometry
        self._entries = [(item, _parameter(model, item)) for item in parameters(geometry, tensor_map)]
        filled = {id(weight) for _, weight in self._entries}
        for name, weight in model.named_parameters():
            if id(weight) not in filled:
                raise ModelError(f"{geometry.family}: its tensor map has no rule for Megatron's parameter {name}")

    def export(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Hugging Face names and contiguous tensors in the dtype of the model, layer by layer.

        A tensor may be a view of the parameter; it is valid until the next one is asked for.
        """
        for item, weight in self._entries:
            yield from zip(item.hf_names, split(item.rule, weight.detach(), self._geometry), strict=True)

    @torch.no_grad()
    def load(self, folder: Path) -> None:
        """Fill every parameter from the safetensors files of a folder, converting to the dtype of the model.

        Raises:
            ModelError: for a file or tensor that is missing, damaged or of a wrong shape.
        """
        tensors = SafetensorsFolder(folder).load(name for item, _ in self._entries for name in item.hf_names)
        for item, weight in self._entries:
            parts = []
            for shape in item.rule.hf_shapes:
                name, tensor = next(tensors)
                if tuple(tensor.shape) != shape:
                    found = list(tensor.shape)
                    raise ModelError(f"{folder}: tensor {name} has shape {found}, config.json asks for {list(shape)}")
                parts.append(tensor)
            weight.copy_(fuse(item.rule, parts, self._geometry))


def fuse(rule: TensorRule, parts: Sequence[torch.Tensor], geometry: ModelGeometry) -> torch.Tensor:
    """Checkpoint tensors to Megatron's parameter.

    `qkv`: for each query group its query heads, its key head and its value head. `gate_up`: gate, then up.
    """
    if rule.transform == "copy":
        return parts[0]
    if rule.transform == "gate_up":
        return torch.cat(list(parts))
    by_group = [part.view(geometry.num_kv_heads, -1, *part.shape[1:]) for part in parts]
    return torch.cat(by_group, dim=1).flatten(0, 1)


def split(rule: TensorRule, weight: torch.Tensor, geometry: ModelGeometry) -> list[torch.Tensor]:
    """Undo `fuse`: contiguous tensors of the rule's shapes, views of `weight` where that is possible."""
    if rule.transform == "copy":
        return [weight]
    rows = [shape[0] for shape in rule.hf_shapes]
    if rule.transform == "gate_up":
        return list(weight.split(rows))
    groups = geometry.num_kv_heads
    by_group = weight.view(groups, -1, *weight.shape[1:]).split([count // groups for count in rows], dim=1)
    return [part.flatten(0, 1).contiguous() for part in by_group]


def _parameter(model: PolicyModel, item: Parameter) -> torch.nn.Parameter:
    role = item.rule.role
    if role not in MEGATRON_NAMES:
        raise ModelError(f"training backend megatron has no parameter for role {role!r} of the tensor map")
    owner = model if item.layer is None else model.decoder.layers[item.layer]
    return owner.get_parameter(MEGATRON_NAMES[role])
