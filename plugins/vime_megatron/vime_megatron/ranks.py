"""Where each rank stands in a layout, and the groups it communicates in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar, cast

import torch
from torch import distributed

from vime_megatron import mcore

if TYPE_CHECKING:
    from vime_core.models.layout import Layout

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Place:
    """Coordinates of one rank."""

    stage: int
    """Pipeline stage."""
    tensor: int
    expert: int
    expert_tensor: int


class Ranks:
    """The places of all ranks, seen from one of them. Making it is collective and starts Megatron's groups.

    Args:
        layout: how the model is shared out.
        device: where groups communicate.
    """

    def __init__(self, layout: Layout, device: torch.device) -> None:
        state = mcore.parallel_state
        state.initialize_model_parallel(
            tensor_model_parallel_size=layout.tensor,
            pipeline_model_parallel_size=layout.pipeline,
            expert_model_parallel_size=layout.expert,
            expert_tensor_parallel_size=layout.expert_tensor,
        )
        self.layout = layout
        self.device = device
        self.here = Place(
            stage=state.get_pipeline_model_parallel_rank(),
            tensor=state.get_tensor_model_parallel_rank(),
            expert=state.get_expert_model_parallel_rank(),
            expert_tensor=state.get_expert_tensor_parallel_rank(),
        )
        self.tensor_group = state.get_tensor_model_parallel_group()
        self.expert_tensor_group = state.get_expert_tensor_parallel_group()
        self.data_group = state.get_data_parallel_group(with_context_parallel=True)
        self._pipeline_group = state.get_pipeline_model_parallel_group()
        self._places = self._gather_places()

    @property
    def is_first_stage(self) -> bool:
        """Whether this rank holds the embedding."""
        return self.here.stage == 0

    @property
    def is_last_stage(self) -> bool:
        """Whether this rank holds the output."""
        return self.here.stage == self.layout.pipeline - 1

    def first(self, stage: int, expert: int | None) -> int:
        """The first rank of a stage, or of the expert-parallel share of a stage, that heads its tensor group."""
        for rank, place in enumerate(self._places):
            heads = place.tensor == 0 if expert is None else (place.expert, place.expert_tensor) == (expert, 0)
            if place.stage == stage and heads:
                return rank
        raise LookupError(f"no rank holds stage {stage}, expert share {expert}")

    def from_last_stage(self, value: T | None) -> T:
        """The value of this replica's last pipeline stage, on all of its stages; that of the others is dropped."""
        values = [value]
        if self.layout.pipeline > 1:
            source = distributed.get_process_group_ranks(self._pipeline_group)[-1]
            distributed.broadcast_object_list(values, source, group=self._pipeline_group, device=self.device)
        return cast("T", values[0])

    def sum_over_data(self, value: int) -> int:
        """The sum over data-parallel ranks."""
        return self._reduced(value, distributed.ReduceOp.SUM)

    def max_over_data(self, value: int) -> int:
        """The largest of all data-parallel ranks."""
        return self._reduced(value, distributed.ReduceOp.MAX)

    def _reduced(self, value: int, operation: distributed.ReduceOp.RedOpType) -> int:
        number = torch.tensor(value, dtype=torch.int64, device=self.device)
        distributed.all_reduce(number, operation, group=self.data_group)
        return int(number)

    def _gather_places(self) -> list[Place]:
        here = self.here
        mine = torch.tensor([here.stage, here.tensor, here.expert, here.expert_tensor], device=self.device)
        every = [torch.empty_like(mine) for _ in range(distributed.get_world_size())]
        distributed.all_gather(every, mine)
        return [Place(*place.tolist()) for place in every]


def leave_groups() -> None:
    """End the process groups that `Ranks` started; safe to call twice.

    Megatron's `destroy_model_parallel` only forgets them, and each gloo group keeps three threads that wake all the
    time.
    """
    # `parallel_state` keeps this list for its timeouts; None stands for the group of all ranks, which is not its own.
    for group in mcore.parallel_state._global_process_group_list or ():
        if group is not None:
            distributed.destroy_process_group(group)
    mcore.parallel_state.destroy_model_parallel()
