"""Prompts to the scored groups of one step."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vime_core.errors import ConfigError
from vime_core.rollout.concurrency import run_jobs
from vime_core.rollout.groups import GroupMaker
from vime_core.rollout.metrics import dropped_metrics, rollout_metrics
from vime_core.rollout.sampling import group_id, rollout_params

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Mapping, Sequence
    from typing import Any

    from vime_core.config.schema import RolloutConfig
    from vime_core.plugins.interfaces import Filter, Generator, PromptSource, RolloutFunction
    from vime_core.rollout.tools import Scorer, Text
    from vime_core.types import Group, Prompt

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A group that was scored, and what the filters said."""

    group: Group
    dropped: str | None
    """Why a filter dropped it."""
    generated_at: float
    """`time.perf_counter` when its last response had come."""


@dataclass(frozen=True, slots=True)
class Collected:
    """The groups of one step, in the order of their prompts, whichever was ready first."""

    outcomes: Sequence[Outcome]
    missing: int
    """Groups short of `rollout.prompts_per_step`: filters dropped too many."""
    rollout_seconds: float
    """From the start until the last response had come."""
    score_seconds: float
    """From then until all were scored: what generation did not hide."""
    devices: int
    """That generated; 0 when nothing was generated."""

    @property
    def groups(self) -> list[Group]:
        """What is trained on."""
        return [outcome.group for outcome in self.outcomes if outcome.dropped is None]

    @property
    def scored(self) -> list[Group]:
        """Kept and dropped groups."""
        return [outcome.group for outcome in self.outcomes]

    @property
    def response_tokens(self) -> int:
        """Tokens that the policy chose, in all samples."""
        return sum(int(sample.loss_mask.sum()) for group in self.scored for sample in group.samples)

    @property
    def metrics(self) -> dict[str, float]:
        """The step's `rollout/*` metrics and the speed of generation."""
        speed = self.response_tokens / self.rollout_seconds / self.devices if self.devices else None
        return {
            **({} if speed is None else {"perf/tokens_per_gpu_per_second": speed}),
            **rollout_metrics(self.scored),
            **dropped_metrics(outcome.dropped for outcome in self.outcomes if outcome.dropped is not None),
            "rollout/tried_groups": float(len(self.outcomes)),
            "rollout/missing_groups": float(self.missing),
        }


class Collector:
    """Takes prompts, generates and scores their groups side by side, and replaces those that filters drop.

    Args:
        source: where prompts come from; its position moves by as many prompts as were tried.
        function: how a prompt becomes samples.
        generator: the engines.
        scorer: judges a group as soon as it is generated.
        tokenizer: decodes responses.
        filters: a group must pass all; the first that drops it gives the reason.
        config: the rollout's settings.
        seed: the run's seed.
        stop_token_ids: tokens that end a response.
    """

    def __init__(
        self,
        source: PromptSource,
        function: RolloutFunction,
        generator: Generator,
        scorer: Scorer,
        tokenizer: Text,
        filters: Sequence[Filter],
        config: RolloutConfig,
        seed: int,
        stop_token_ids: Sequence[int],
    ) -> None:
        self._source = source
        self._maker = GroupMaker(function, generator, scorer, tokenizer)
        self._filters = filters
        self._config = config
        self._seed = seed
        self._stop_token_ids = stop_token_ids

    async def collect(self, step: int, policy_version: int) -> Collected:
        """The groups of one step.

        At most `prompts_per_step` groups are under way at a time, so which prompts are tried depends on what the
        filters drop and not on what is ready first. When `max_oversampling` times as many prompts were tried, the
        groups that passed are a smaller batch.

        Raises:
            ConfigError: when the filters dropped every group, or too many and `partial_batch` is off.
            EngineError, DeadlineError, PluginError, RewardError: the first failure of a part; the rest is cancelled.
        """
        started = time.perf_counter()
        outcomes = await self._outcomes(step, policy_version)
        generated = max(outcome.generated_at for outcome in outcomes)
        missing = missing_groups(step, outcomes, self._config)
        devices = self._config.num_engines * self._config.tensor_parallel_size
        return Collected(outcomes, missing, generated - started, time.perf_counter() - generated, devices)

    def state(self) -> dict[str, Any]:
        """Position in the prompts, see `PromptSource.state`."""
        return self._source.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`, see `PromptSource.restore`."""
        self._source.restore(state)

    async def _outcomes(self, step: int, policy_version: int) -> list[Outcome]:
        wanted = self._config.prompts_per_step
        limit = math.floor(wanted * self._config.max_oversampling)
        occurrences: Counter[str] = Counter()
        outcomes: dict[int, Outcome] = {}
        kept = 0

        async def attempt(position: int, prompt: Prompt, group: str) -> tuple[int, Outcome]:
            return position, await self._attempt(prompt, group, policy_version)

        def next_job(running: int) -> Coroutine[Any, Any, tuple[int, Outcome]] | None:
            position = len(outcomes) + running
            if kept + running >= wanted or position >= limit:
                return None
            [prompt] = self._source.take(1)
            group = group_id(step, occurrences[prompt.id], prompt.id)
            occurrences[prompt.id] += 1
            return attempt(position, prompt, group)

        def finished(result: tuple[int, Outcome]) -> None:
            nonlocal kept
            position, outcome = result
            outcomes[position] = outcome
            kept += outcome.dropped is None

        await run_jobs(next_job, finished)
        return [outcomes[position] for position in sorted(outcomes)]

    async def _attempt(self, prompt: Prompt, group_id: str, policy_version: int) -> Outcome:
        params = rollout_params(self._config, self._stop_token_ids, group_id, self._seed)
        group = await self._maker.generate(prompt, group_id, params, policy_version)
        generated_at = time.perf_counter()
        await self._maker.score(group)
        return Outcome(group, drop_reason(self._filters, group), generated_at)


def drop_reason(filters: Sequence[Filter], group: Group) -> str | None:
    """Why the first filter that drops a group does so; None when it passes all."""
    reasons = (candidate.keep(group) for candidate in filters)
    return next((reason for reason in reasons if reason is not None), None)


def missing_groups(step: int, outcomes: Sequence[Outcome], config: RolloutConfig) -> int:
    """By how many groups a step is short of `prompts_per_step`; tells why.

    Raises:
        ConfigError: when the filters dropped every group, or too many and `partial_batch` is off.
    """
    wanted = config.prompts_per_step
    kept = sum(outcome.dropped is None for outcome in outcomes)
    if kept >= wanted:
        return 0
    tried = len(outcomes)
    reasons = _counts(outcome.dropped for outcome in outcomes if outcome.dropped is not None)
    if not kept:
        samples = (sample for outcome in outcomes for sample in outcome.group.samples)
        verdicts = _counts(sample.verdict.status for sample in samples if sample.verdict is not None)
        raise ConfigError(
            f"step {step}: the filters dropped all {tried} groups ({reasons}; verdicts: {verdicts}); loosen the "
            "filters, raise rollout.max_oversampling, or use prompts that the policy sometimes solves"
        )
    short = wanted - kept
    told = f"step {step}: {short} of {wanted} groups are missing: filters dropped {reasons} of the {tried} tried"
    if not config.partial_batch:
        raise ConfigError(
            f"{told}; raise rollout.max_oversampling, loosen the filters, or set rollout.partial_batch=true"
        )
    logger.warning("%s, which is all that rollout.max_oversampling allows", told)
    return short


def _counts(names: Iterable[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in Counter(names).most_common())
