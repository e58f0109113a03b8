"""The sync strategy `none`: there are no engines to push to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vime_core.types import PushReport

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import torch

    from vime_core.config.schema import SyncConfig
    from vime_core.types import EngineEndpoint


class NoSync:
    """Implements `SyncStrategy`."""

    def __init__(self, config: SyncConfig, rank: int, world_size: int) -> None:
        self._rank = rank

    def connect(self, endpoints: Sequence[EngineEndpoint]) -> None:
        """Nothing to prepare."""

    def push(self, weights: Iterable[tuple[str, torch.Tensor]], version: int) -> PushReport | None:
        """Moves nothing, and leaves `weights` alone on every rank."""
        return PushReport(version=version, bytes=0, seconds=0.0, tensors=0, checksums={}) if self._rank == 0 else None

    def close(self) -> None:
        """Nothing to release."""
