"""From what the rewards say of a sample to its verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from vime_core.rewards.combine import combine
from vime_core.rewards.routing import covers, uncovered
from vime_core.types import SILENT_STATUSES, keep_parts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vime_core.config.schema import RewardConfig
    from vime_core.rewards.combine import Part
    from vime_core.types import Prompt, Sample, Verdict


class Asked(Protocol):
    """Asks all rewards; see `RewardPool.ask`."""

    async def ask(self, samples: Sequence[Sample], prompt: Prompt) -> list[list[Part]]:
        """What the rewards say of each sample, in order."""
        ...


class Judge:
    """Combines the verdicts of the rewards that judge a row, and keeps each one's own when there are several.

    Args:
        pool: asks all rewards.
        rewards: their settings, by name.
    """

    def __init__(self, pool: Asked, rewards: Mapping[str, RewardConfig]) -> None:
        self._pool = pool
        self._rewards = rewards

    async def score(self, samples: Sequence[Sample], prompt: Prompt) -> list[Verdict]:
        """One verdict for each sample, in order; may be awaited many times at once.

        Raises:
            ConfigError: when no reward judges rows of the prompt's data source.
            RewardError, PluginError, DeadlineError: when a scoring process cannot be replaced.
        """
        judging = {name for name, config in self._rewards.items() if covers(config.data_sources, prompt.data_source)}
        if not judging:
            raise uncovered(self._rewards, prompt)
        return [
            self._verdict(sample, parts, judging)
            for sample, parts in zip(samples, await self._pool.ask(samples, prompt), strict=True)
        ]

    def _verdict(self, sample: Sample, parts: Sequence[Part], judging: set[str]) -> Verdict:
        # A process that ends over a sample is an error of the first reward in it, whichever that is.
        counted = [part for part in parts if part.name in judging or part.verdict.status in SILENT_STATUSES]
        if len(self._rewards) > 1:
            keep_parts(sample, {part.name: part.verdict for part in counted})
        return combine(counted)
