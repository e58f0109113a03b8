"""How a model is shared out over the ranks of a trainer, as plain numbers."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True, slots=True)
class Layout:
    """Sizes of every kind of parallelism; `data_parallel` replicas of `tensor` x `pipeline` ranks."""

    world_size: int
    tensor: int = 1
    sequence: bool = False
    """Whether tensor-parallel ranks share out the tokens between their matrices."""
    stage_layers: tuple[int, ...] = ()
    """Layers of each pipeline stage."""
    expert: int = 1
    expert_tensor: int = 1

    @property
    def pipeline(self) -> int:
        """Pipeline stages."""
        return len(self.stage_layers)

    @property
    def data_parallel(self) -> int:
        """Replicas of what is no expert, each with micro-batches of its own."""
        return self.world_size // (self.tensor * self.pipeline)

    @property
    def expert_data_parallel(self) -> int:
        """Replicas of an expert."""
        return self.world_size // (self.expert_tensor * self.expert * self.pipeline)

    @property
    def whole(self) -> bool:
        """Whether every rank holds every parameter."""
        return self.tensor == self.pipeline == self.expert == self.expert_tensor == 1

    def stage_of(self, layer: int) -> int:
        """The pipeline stage of a layer."""
        return next(stage for stage, end in enumerate(accumulate(self.stage_layers)) if layer < end)

    def first_layer(self, stage: int) -> int:
        """The first layer of a pipeline stage."""
        return sum(self.stage_layers[:stage])


def even_stages(layers: int, stages: int) -> tuple[int, ...]:
    """Layers of each stage, as even as it goes, earlier stages first."""
    least, larger = divmod(layers, stages)
    return tuple(least + (stage < larger) for stage in range(stages))
