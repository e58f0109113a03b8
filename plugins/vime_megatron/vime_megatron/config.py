"""Settings of the training backend."""

from __future__ import annotations

from dataclasses import dataclass

from vime_core.config.schema import TrainConfig


@dataclass(kw_only=True)
class MegatronConfig(TrainConfig):
    """Data-parallel training with Megatron-Core; every rank holds the whole model and a share of the optimizer."""

    name: str = "megatron"
    """The entry that is used."""
