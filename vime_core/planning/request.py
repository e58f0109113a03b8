"""From the configuration of a run to the numbers that are planned with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vime_core.planning.engine import EngineSettings
from vime_core.planning.layout import layout_of
from vime_core.planning.memory import Request

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vime_core.config.schema import Config
    from vime_core.models.geometry import ModelGeometry, TensorRule


def request_of(
    config: Config,
    geometry: ModelGeometry,
    tensor_map: Sequence[TensorRule],
    *,
    memory: int,
    shared_host: bool,
    generates: bool = True,
    sync: Any = None,
) -> Request:
    """A request for the run that is configured.

    Args:
        config: of the run.
        geometry: of its model.
        tensor_map: of its model.
        memory: bytes of one device, or those free on the host.
        shared_host: whether everything runs on the CPU.
        generates: whether there are engines.
        sync: entry of the sync strategy, which says how many buffers it has; none when None.
    """
    rollout, train = config.rollout, config.train
    engine = EngineSettings.of(rollout, train.dtype, rollout.num_engines if generates else 0)
    colocated = config.placement == "colocated"
    engine_devices = engine.engines * engine.tensor
    return Request(
        geometry=geometry,
        tensor_map=tensor_map,
        layout=layout_of(train, geometry, on_device=not shared_host),
        dtype=train.dtype,
        # A sample that is longer than a micro-batch may be gets one of its own.
        micro_tokens=max(train.max_tokens_per_device, engine.longest),
        chunk_tokens=train.logprob_chunk_tokens,
        engine=engine,
        memory=memory,
        devices=max(train.world_size, engine_devices) if colocated else train.world_size + engine_devices,
        colocated=colocated,
        shared_host=shared_host,
        bucket=config.sync.bucket_mib << 20,
        trainer_buffers=getattr(sync, "trainer_buffers", 0),
        engine_buffers=getattr(sync, "engine_buffers", 0),
    )
