"""The rollout backend of a run whose rollouts exist already: nothing to start, pause or reach."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vime_core.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vime_core.types import Completion, EngineEndpoint, SamplingParams


class NoEngines:
    """Implements `RolloutBackend`."""

    def start(self) -> None:
        """Nothing to start."""

    def endpoints(self) -> list[EngineEndpoint]:
        """None."""
        return []

    async def generate(
        self, token_ids: Sequence[int], params: SamplingParams, *, engine: str | None = None
    ) -> Completion:
        """There is nobody to answer.

        Raises:
            EngineError: always.
        """
        raise EngineError("this run has no engines: its rollouts are recorded ones")

    async def pause(self) -> None:
        """Nothing runs."""

    async def resume(self) -> None:
        """Undo `pause`."""

    async def abort(self) -> None:
        """Nothing is in flight."""

    async def sleep(self) -> None:
        """Holds no device memory."""

    async def wake(self) -> None:
        """Undo `sleep`."""

    def health(self) -> None:
        """Nothing can die."""

    def close(self) -> None:
        """Nothing to end."""
