"""How a trainer's ranks share a model out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vime_core.models.layout import Layout, even_stages

if TYPE_CHECKING:
    from vime_core.config.schema import TrainConfig
    from vime_core.models.geometry import ModelGeometry

RECOMPUTE = ("none", "selective", "full")
"""From most memory to least."""


@dataclass(frozen=True, slots=True)
class TrainLayout(Layout):
    """A layout, and how its layers are computed, as far as memory depends on it."""

    recompute: str = "none"
    """What is computed again to save memory."""
    grouped_experts: bool = False
    """Whether all experts of a rank are computed together."""

    def describe(self) -> str:
        """Short text, e.g. `TP2 DP1 full recompute`."""
        sizes = [f"TP{self.tensor}{'+SP' if self.sequence else ''}"]
        sizes += [f"PP{self.pipeline}"] if self.pipeline > 1 else []
        sizes += [f"DP{self.data_parallel}"]
        sizes += [f"EP{self.expert}"] if self.expert > 1 else []
        sizes += [f"ETP{self.expert_tensor}"] if self.expert_tensor > 1 else []
        return f"{' '.join(sizes)}, recompute {self.recompute}"


def layout_of(config: TrainConfig, geometry: ModelGeometry, *, on_device: bool = True) -> TrainLayout:
    """The layout that a training backend's settings ask for; a backend without such settings is data-parallel."""
    grouped = getattr(config, "moe_grouped_gemm", False)
    tensor = getattr(config, "tensor_parallel", 1)
    sequence = getattr(config, "sequence_parallel", None)
    layers = getattr(config, "pipeline_layers", None)
    stages = getattr(config, "pipeline_parallel", 1)
    return TrainLayout(
        world_size=config.world_size,
        tensor=tensor,
        sequence=tensor > 1 and sequence is not False,
        stage_layers=tuple(layers) if layers else even_stages(geometry.num_layers, stages),
        expert=getattr(config, "expert_parallel", 1),
        expert_tensor=getattr(config, "expert_tensor_parallel", 1),
        recompute=getattr(config, "recompute", "none"),
        grouped_experts=on_device and config.dtype == "bfloat16" if grouped is None else grouped,
    )
