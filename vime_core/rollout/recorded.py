"""Recorded groups in place of generated ones."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from vime_core.errors import RunFolderError
from vime_core.rollout.collect import Collected, Outcome, drop_reason, missing_groups

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vime_core.config.schema import RolloutConfig
    from vime_core.plugins.interfaces import Filter, RolloutRecord
    from vime_core.types import Group


class RecordedCollector:
    """Takes the groups of each step, with their verdicts, from a record; filters are applied anew.

    Args:
        record: of another run.
        filters: a group must pass all; the first that drops it gives the reason.
        config: the rollout's settings.
        vocab_size: of the model that is trained.
    """

    def __init__(
        self, record: RolloutRecord, filters: Sequence[Filter], config: RolloutConfig, vocab_size: int
    ) -> None:
        self._record = record
        self._filters = filters
        self._config = config
        self._vocab_size = vocab_size
        self._step = 0

    async def collect(self, step: int, policy_version: int) -> Collected:
        """The groups of one step; samples keep the policy versions that they were recorded with.

        Raises:
            ConfigError: when the filters dropped every group, or too many and `partial_batch` is off.
            RunFolderError: when the step cannot be read, or its tokens are not of this model.
        """
        started = time.perf_counter()
        groups = self._record.groups(step)
        self._check_tokens(step, groups)
        outcomes = [Outcome(group, drop_reason(self._filters, group), time.perf_counter()) for group in groups]
        missing = missing_groups(step, outcomes, self._config)
        self._step = step
        return Collected(outcomes, missing, time.perf_counter() - started, score_seconds=0.0, devices=0)

    def state(self) -> dict[str, Any]:
        """What identifies the steps that were taken."""
        return self._record.state(self._step)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Check that the record is the one that `state` is of; which step is next is the loop's to say.

        Raises:
            RunFolderError: when it is another one.
        """
        self._record.check(state)

    def _check_tokens(self, step: int, groups: Sequence[Group]) -> None:
        samples = [sample for group in groups for sample in group.samples]
        tokens = [ids for sample in samples for ids in (sample.prompt_ids, sample.response_ids)]
        largest = max(int(ids.max(initial=0)) for ids in tokens)
        if largest >= self._vocab_size:
            raise RunFolderError(
                f"step {step} of the recorded rollouts has token id {largest}, and the model has {self._vocab_size} "
                "tokens: replay them with the model that they were recorded with"
            )
