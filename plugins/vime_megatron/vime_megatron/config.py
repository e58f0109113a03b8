"""Settings of the training backend."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from vime_core.config.schema import TrainConfig, option

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(kw_only=True)
class MegatronConfig(TrainConfig):
    """Training with Megatron-Core; ranks that no kind of parallelism takes are data-parallel."""

    name: str = "megatron"
    """The entry that is used."""
    tensor_parallel: int = option(1, low=1)
    """Ranks that share every matrix out."""
    sequence_parallel: bool | None = None
    """Whether tensor-parallel ranks share out the tokens between their matrices too; with `tensor_parallel` when
    null."""
    context_parallel: int = option(1, low=1)
    """Ranks that share the tokens of a sequence out; above 1 needs an attention that this backend does not have."""
    pipeline_parallel: int = option(1, low=1)
    """Stages that share the layers out."""
    pipeline_layers: list[int] | None = None
    """Layers of each stage; as even as it goes when null, earlier stages first."""
    expert_parallel: int = option(1, low=1)
    """Ranks that share the experts out."""
    expert_tensor_parallel: int = option(1, low=1)
    """Ranks that share every matrix of an expert out."""
    token_dispatcher: str = option("alltoall", choices=("alltoall", "allgather"))
    """How tokens travel to their experts; `allgather` pads the micro-batches of all ranks to one length."""
    moe_grouped_gemm: bool | None = None
    """Whether the matrix products of a rank's experts are computed together, not one expert after the other; on devices
    under `dtype=bfloat16` when null."""
    moe_aux_loss: float = option(0.0, low=0)
    """Weight of the load-balancing loss of experts, a mean over tokens, added to the algorithm's loss."""
    recompute: str = option("none", choices=("none", "selective", "full"))
    """What is computed again in the backward pass to save memory: attention scores, or whole layers."""

    def one_rank(self) -> Self:
        """The same for a single rank that holds the whole model."""
        return replace(
            self,
            world_size=1,
            tensor_parallel=1,
            sequence_parallel=None,
            pipeline_parallel=1,
            pipeline_layers=None,
            expert_parallel=1,
            expert_tensor_parallel=1,
        )
