"""Weights in and out: Hugging Face tensors to Megatron's parameters and back, by one tensor map."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import distributed

from vime_core.errors import ModelError
from vime_core.models.stacked import open_weights
from vime_core.models.tensors import parameters
from vime_megatron.sharding import merge, shard, shard_shape

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from vime_core.models.geometry import ModelGeometry, TensorRule
    from vime_core.models.tensors import Parameter
    from vime_megatron.model import PolicyModel
    from vime_megatron.ranks import Ranks

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
    "layer.moe.router": "mlp.router.weight",
    "layer.moe.expert.gate_up": "mlp.experts.local_experts.{expert}.linear_fc1.weight",
    "layer.moe.expert.down": "mlp.experts.local_experts.{expert}.linear_fc2.weight",
    "final_norm": "decoder.final_layernorm.weight",
    "output": "output_layer.weight",
}
"""Role of a tensor rule to Megatron's parameter: within its layer for roles of layers, else within the model.

`{expert}` counts the experts of the rank.
"""

EXPORT_BUCKET_BYTES = 64 << 20
"""Most bytes of parameters that ranks gather at one time; a larger parameter travels alone."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Which ranks hold a parameter."""

    stage: int
    expert: int | None
    """The expert-parallel share; None for what every one of them holds."""


class WeightMap:
    """The parameters of one model, each with the checkpoint tensors that it stands for."""

    def __init__(
        self, model: PolicyModel, geometry: ModelGeometry, tensor_map: Sequence[TensorRule], ranks: Ranks
    ) -> None:
        """Find the parameter of every rule.

        Raises:
            ModelError: for a role that is not known here, or a parameter that no rule fills.
        """
        self._geometry = geometry
        self._tensor_map = tensor_map
        self._ranks = ranks
        self._items = list(parameters(geometry, tensor_map))
        self._dtype = next(model.parameters()).dtype
        here = (ranks.here.stage, ranks.here.expert)
        self._here = {
            index: self._parameter(model, item)
            for index, item in enumerate(self._items)
            if (owner := self._owner(item)).stage == here[0] and owner.expert in (None, here[1])
        }
        self._filled = [(self._items[index], weight) for index, weight in self._here.items()]
        if geometry.tied_embeddings and ranks.is_last_stage and not ranks.is_first_stage:
            self._filled.append((self._items[0], model.output_layer.weight))
        filled = {id(weight) for _, weight in self._filled}
        for name, weight in model.named_parameters():
            if id(weight) not in filled:
                raise ModelError(f"{geometry.family}: its tensor map has no rule for Megatron's parameter {name}")

    def export(
        self, read: Callable[[torch.nn.Parameter], torch.Tensor] = torch.Tensor.detach
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Hugging Face names and contiguous tensors, layer by layer; every rank gets all of them.

        A tensor may be a view of the parameter; it is valid until the next one is asked for.

        Args:
            read: what to export of a parameter of this rank, in its shape and dtype.
        """
        for bucket in self._buckets():
            shares = self._shares(bucket, read)
            for index, values in zip(bucket, shares, strict=True):
                item = self._items[index]
                yield from zip(item.hf_names, merge(item.rule, values, self._geometry), strict=True)

    @torch.no_grad()
    def load(self, folder: Path) -> None:
        """Fill every parameter from the safetensors files of a folder, converting to the dtype of the model.

        Raises:
            ModelError: for a file or tensor that is missing, damaged or of a wrong shape.
        """
        files = open_weights(folder, self._geometry, self._tensor_map)
        tensors = files.load(name for item, _ in self._filled for name in item.hf_names)
        for item, weight in self._filled:
            parts = []
            for shape in item.rule.hf_shapes:
                name, tensor = next(tensors)
                if tuple(tensor.shape) != shape:
                    found = list(tensor.shape)
                    raise ModelError(f"{folder}: tensor {name} has shape {found}, config.json asks for {list(shape)}")
                parts.append(tensor)
            rank, size = self._share_of(item)
            weight.copy_(shard(item.rule, parts, self._geometry, rank, size))

    def held(self) -> list[tuple[Parameter, torch.nn.Parameter]]:
        """The parameters of this rank, in the order of the tensor map."""
        return list(self._filled)

    def _owner(self, item: Parameter) -> Owner:
        layout, experts = self._ranks.layout, self._geometry.experts
        if item.layer is None:
            return Owner(0 if item.rule.role == "embedding" else layout.pipeline - 1, None)
        if item.expert is None or experts is None:
            return Owner(layout.stage_of(item.layer), None)
        return Owner(layout.stage_of(item.layer), item.expert // (experts.num_experts // layout.expert))

    def _share_of(self, item: Parameter) -> tuple[int, int]:
        """(rank, size) among the ranks that share a parameter of this rank out."""
        here, layout = self._ranks.here, self._ranks.layout
        if item.expert is None:
            return here.tensor, layout.tensor
        return here.expert_tensor, layout.expert_tensor

    def _buckets(self) -> Iterator[list[int]]:
        """Indices of parameters that follow each other and have one owner."""
        bucket: list[int] = []
        size = 0
        for index, item in enumerate(self._items):
            added = self._dtype.itemsize * sum(map(math.prod, item.rule.hf_shapes))
            if bucket and (
                self._owner(self._items[bucket[0]]) != self._owner(item) or size + added > EXPORT_BUCKET_BYTES
            ):
                yield bucket
                bucket, size = [], 0
            bucket.append(index)
            size += added
        yield bucket

    def _shares(
        self, bucket: Sequence[int], read: Callable[[torch.nn.Parameter], torch.Tensor]
    ) -> list[list[torch.Tensor]]:
        """The shares of each parameter of a bucket, from all ranks that hold one."""
        ranks = self._ranks
        if ranks.layout.whole:
            return [[read(self._here[index])] for index in bucket]
        items = [self._items[index] for index in bucket]
        _, size = self._share_of(items[0])
        owner = self._owner(items[0])
        shapes = [shard_shape(item.rule, size) for item in items]
        counts = [math.prod(shape) for shape in shapes]
        gathered = torch.empty((size, sum(counts)), dtype=self._dtype, device=ranks.device)
        source = ranks.first(owner.stage, owner.expert)
        group = ranks.tensor_group if owner.expert is None else ranks.expert_tensor_group
        if source in distributed.get_process_group_ranks(group):
            mine = torch.cat([read(self._here[index]).reshape(-1) for index in bucket])
            distributed.all_gather(list(gathered.unbind()), mine, group=group)
        if size < ranks.layout.world_size:
            distributed.broadcast(gathered, source)
        by_item = gathered.split(counts, dim=1)
        return [[share.view(shape) for share in part.unbind()] for shape, part in zip(shapes, by_item, strict=True)]

    def _parameter(self, model: PolicyModel, item: Parameter) -> torch.nn.Parameter:
        role = item.rule.role
        if role not in MEGATRON_NAMES:
            raise ModelError(f"training backend megatron has no parameter for role {role!r} of the tensor map")
        layout, experts = self._ranks.layout, self._geometry.experts
        expert = 0 if item.expert is None or experts is None else item.expert % (experts.num_experts // layout.expert)
        name = MEGATRON_NAMES[role].format(expert=expert)
        if item.layer is None:
            return model.get_parameter(name)
        return model.decoder.layers[item.layer - layout.first_layer(self._ranks.here.stage)].get_parameter(name)
