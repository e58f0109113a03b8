"""Held-out evaluation: accuracy of the policy on prompts that are never trained on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vime_core.data.prompts import PromptTable, naming
from vime_core.rollout.concurrency import run_in_order
from vime_core.rollout.groups import GroupMaker
from vime_core.rollout.metrics import evaluation_metrics
from vime_core.rollout.sampling import evaluation_params, group_id

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from vime_core.config.schema import EvalSetConfig, RolloutConfig
    from vime_core.data.config import FilesConfig
    from vime_core.data.tokenizer import Tokenizer
    from vime_core.plugins.interfaces import Generator, RolloutFunction
    from vime_core.rollout.tools import Scorer, Text
    from vime_core.types import Group, Prompt


@dataclass(frozen=True, slots=True)
class EvalSet:
    """A held-out set, read and tokenised."""

    name: str
    config: EvalSetConfig
    prompts: Sequence[Prompt]
    """In the order of the file."""
    report: Mapping[str, int]
    """Counts of `PromptTable.report`: prompts that are too long are not evaluated."""


def load_eval_sets(
    evals: Mapping[str, EvalSetConfig], keys: FilesConfig, tokenizer: Tokenizer, max_prompt_tokens: int
) -> list[EvalSet]:
    """All held-out sets; `keys` are those of plain rows.

    Raises:
        DataError: for a file or a row that is wrong, for an empty set, and when every prompt of one is too long.
    """
    sets = []
    for name, config in evals.items():
        with naming(f"evals.{name}.path"):
            table = PromptTable(
                config.path, keys, tokenizer, max_prompt_tokens=max_prompt_tokens, max_rows=config.max_prompts
            )
        sets.append(EvalSet(name, config, [table[row] for row in range(len(table))], table.report()))
    return sets


class Evaluator:
    """Answers and judges held-out prompts with the parts that a training step uses.

    Args:
        sets: what `load_eval_sets` read.
        function: how a prompt becomes samples.
        generator: the engines.
        scorer: judges a group as soon as it is generated.
        tokenizer: decodes responses.
        config: the rollout's settings: length limit, and cuts where the set is not greedy.
        seed: the run's seed; a set gets the same seeds at every step.
        stop_token_ids: tokens that end a response.
    """

    def __init__(
        self,
        sets: Sequence[EvalSet],
        function: RolloutFunction,
        generator: Generator,
        scorer: Scorer,
        tokenizer: Text,
        config: RolloutConfig,
        seed: int,
        stop_token_ids: Sequence[int],
    ) -> None:
        self._sets = sets
        self._maker = GroupMaker(function, generator, scorer, tokenizer)
        self._config = config
        self._seed = seed
        self._stop_token_ids = stop_token_ids

    async def evaluate(self, policy_version: int) -> dict[str, float]:
        """`eval/<name>/*` of every set; see `evaluation_metrics`.

        Raises:
            EngineError, DeadlineError, PluginError, RewardError: the first failure of a part; the rest is cancelled.
        """
        metrics: dict[str, float] = {}
        for eval_set in self._sets:
            metrics.update(evaluation_metrics(eval_set.name, await self.groups(eval_set, policy_version)))
        return metrics

    async def groups(
        self, eval_set: EvalSet, policy_version: int, finished: Callable[[Group], None] | None = None
    ) -> list[Group]:
        """Answer and judge one set.

        Args:
            eval_set: of any name.
            policy_version: that the engines must have.
            finished: told each group, in the order of the prompts.

        Raises:
            EngineError, DeadlineError, PluginError, RewardError: as `evaluate`.
        """
        requests = self._config.prompts_per_step * self._config.samples_per_prompt  # as in a training step
        return await run_in_order(
            eval_set.prompts,
            lambda prompt: self._group(eval_set, prompt, policy_version),
            at_a_time=max(1, requests // eval_set.config.samples_per_prompt),
            finished=finished,
        )

    async def _group(self, eval_set: EvalSet, prompt: Prompt, policy_version: int) -> Group:
        identity = group_id(f"eval/{eval_set.name}", 0, prompt.id)
        params = evaluation_params(self._config, eval_set.config, self._stop_token_ids, identity, self._seed)
        greedy = eval_set.config.temperature == 0
        group = await self._maker.generate(prompt, identity, params, policy_version, logprobs=not greedy)
        await self._maker.score(group)
        return group
