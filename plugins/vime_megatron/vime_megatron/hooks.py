"""Registration only; implementations are imported when chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vime_core.plugins.entries import TrainBackendEntry
from vime_core.plugins.hookspecs import hookimpl
from vime_megatron.config import MegatronConfig
from vime_megatron.layout import check_layout

if TYPE_CHECKING:
    from collections.abc import Iterable


@hookimpl
def vime_train_backends() -> Iterable[TrainBackendEntry]:
    """Training with Megatron-Core."""
    return [
        TrainBackendEntry(
            name="megatron",
            summary="Megatron-Core: packed sequences, distributed optimizer, float32 and bfloat16",
            config=MegatronConfig,
            factory="vime_megatron.backend:MegatronBackend",
            check=check_layout,
            converter="vime_megatron.convert:MegatronConverter",
            requires=("torch", "megatron", "megatron.core"),
        )
    ]
