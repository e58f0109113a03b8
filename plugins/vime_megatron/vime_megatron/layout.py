"""How a model is shared out over ranks: which layouts can be, as plain numbers. No torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vime_core.errors import ConfigError
from vime_core.models.layout import Layout, even_stages
from vime_core.planning.shares import DTYPE_BYTES

if TYPE_CHECKING:
    from vime_core.models.geometry import ModelGeometry
    from vime_megatron.config import MegatronConfig

ROW_BYTES = 16
"""What divides the rows of all matrices in a grouped product of torch."""


def plan_layout(config: MegatronConfig, geometry: ModelGeometry) -> Layout:
    """The layout that the settings ask for.

    Raises:
        ConfigError: one line with the keys, their values and what would do.
    """
    _check_context_parallel(config)
    _check_experts(config, geometry)
    _check_tensor_parallel(config, geometry)
    layout = Layout(
        world_size=config.world_size,
        tensor=config.tensor_parallel,
        sequence=_sequence_parallel(config, geometry),
        stage_layers=_stage_layers(config, geometry),
        expert=config.expert_parallel,
        expert_tensor=config.expert_tensor_parallel,
    )
    _check_ranks(layout)
    return layout


def check_layout(config: MegatronConfig, geometry: ModelGeometry) -> None:
    """See `plan_layout`."""
    plan_layout(config, geometry)


def _check_context_parallel(config: MegatronConfig) -> None:
    if config.context_parallel > 1:
        raise ConfigError(
            f"train.context_parallel={config.context_parallel} needs the attention of TransformerEngine, which hands "
            "keys and values between ranks; this backend's own sees whole sequences. Set train.context_parallel=1"
        )


def _check_tensor_parallel(config: MegatronConfig, geometry: ModelGeometry) -> None:
    sizes = {
        "attention heads": geometry.num_heads,
        "key-value heads": geometry.num_kv_heads,
        "rows of its MLP (intermediate_size)": geometry.ffn_size,
    }
    _check_divides("tensor_parallel", config.tensor_parallel, sizes)


def _check_experts(config: MegatronConfig, geometry: ModelGeometry) -> None:
    experts = geometry.experts
    if experts is None:
        used = {
            "expert_parallel": config.expert_parallel > 1,
            "expert_tensor_parallel": config.expert_tensor_parallel > 1,
            "moe_aux_loss": config.moe_aux_loss > 0,
            "moe_grouped_gemm": config.moe_grouped_gemm is True,
        }
        for key in (key for key, is_used in used.items() if is_used):
            value = str(getattr(config, key)).lower()
            raise ConfigError(f"train.{key}={value}, but the model has no experts; leave it out")
        return
    _check_divides("expert_parallel", config.expert_parallel, {"experts a layer": experts.num_experts})
    rows = {"rows of an expert (moe_intermediate_size)": experts.ffn_size}
    _check_divides("expert_tensor_parallel", config.expert_tensor_parallel, rows)
    if config.moe_grouped_gemm and not grouped_rows_fit(config, geometry):
        raise ConfigError(
            f"train.moe_grouped_gemm=true needs matrices with rows of a multiple of {ROW_BYTES} bytes, but with "
            f"train.dtype={config.dtype} and train.expert_tensor_parallel={config.expert_tensor_parallel} the experts' "
            f"have {' and '.join(f'{size:,}' for size in _row_bytes(config, geometry))} bytes; leave it out"
        )


def grouped_rows_fit(config: MegatronConfig, geometry: ModelGeometry) -> bool:
    """Whether torch's grouped product takes the experts' matrices, on any device."""
    return not any(size % ROW_BYTES for size in _row_bytes(config, geometry))


def _row_bytes(config: MegatronConfig, geometry: ModelGeometry) -> tuple[int, ...]:
    """Bytes of a row of an expert's first and second matrix on one rank."""
    if geometry.experts is None:
        return ()
    size = DTYPE_BYTES[config.dtype]
    return geometry.hidden_size * size, geometry.experts.ffn_size // config.expert_tensor_parallel * size


def _check_divides(key: str, ranks: int, sizes: dict[str, int]) -> None:
    for what, size in sizes.items():
        if size % ranks:
            fitting = ", ".join(str(number) for number in range(1, size + 1) if size % number == 0)
            raise ConfigError(
                f"train.{key}={ranks} does not divide the model's {size} {what}; set train.{key} to one of {fitting}"
            )


def _sequence_parallel(config: MegatronConfig, geometry: ModelGeometry) -> bool:
    wanted, tensor = config.sequence_parallel, config.tensor_parallel
    if wanted and tensor == 1:
        raise ConfigError(
            "train.sequence_parallel=true shares tokens out over tensor-parallel ranks, but train.tensor_parallel=1; "
            "set train.tensor_parallel, or leave it out"
        )
    if wanted is False and tensor > 1 and geometry.experts is not None:
        raise ConfigError(
            f"train.tensor_parallel={tensor} with experts needs train.sequence_parallel=true; set it, or set "
            "train.tensor_parallel=1"
        )
    return tensor > 1 and wanted is not False


def _stage_layers(config: MegatronConfig, geometry: ModelGeometry) -> tuple[int, ...]:
    stages, layers, chosen = config.pipeline_parallel, geometry.num_layers, config.pipeline_layers
    if stages > layers:
        raise ConfigError(
            f"train.pipeline_parallel={stages} is more than the model's {layers} layers; set it to {layers} at most"
        )
    if chosen is None:
        return even_stages(layers, stages)
    if len(chosen) != stages or sum(chosen) != layers or min(chosen) < 1:
        raise ConfigError(
            f"train.pipeline_layers={list(chosen)} must be {stages} numbers above 0 (train.pipeline_parallel) that add "
            f"up to the model's {layers} layers"
        )
    return tuple(chosen)


def _check_ranks(layout: Layout) -> None:
    replicas = {
        f"train.tensor_parallel={layout.tensor} x train.pipeline_parallel={layout.pipeline}": (
            layout.tensor * layout.pipeline
        ),
        f"train.expert_tensor_parallel={layout.expert_tensor} x train.expert_parallel={layout.expert} x "
        f"train.pipeline_parallel={layout.pipeline}": layout.expert_tensor * layout.expert * layout.pipeline,
    }
    for told, ranks in replicas.items():
        if layout.world_size % ranks:
            below, above = layout.world_size // ranks * ranks, (layout.world_size // ranks + 1) * ranks
            near = " or ".join(str(number) for number in (below, above) if number)
            raise ConfigError(
                f"train.world_size={layout.world_size} is no multiple of {told} = {ranks} ranks; set "
                f"train.world_size={near}"
            )
