"""From one prompt to a scored group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vime_core.rollout.checks import check_group, check_sample, check_verdicts
from vime_core.rollout.tools import Tools
from vime_core.types import Group

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vime_core.plugins.interfaces import Generator, RolloutFunction
    from vime_core.rollout.tools import Scorer, Text
    from vime_core.types import Prompt, SamplingParams


@dataclass(frozen=True, slots=True)
class GroupMaker:
    """Generates and scores one group at a time; several may be made side by side."""

    function: RolloutFunction
    generator: Generator
    scorer: Scorer
    tokenizer: Text

    async def generate(
        self,
        prompt: Prompt,
        group_id: str,
        params: Sequence[SamplingParams],
        policy_version: int,
        *,
        logprobs: bool = True,
    ) -> Group:
        """A group whose samples are checked and decoded, and not scored yet.

        Raises:
            EngineError: when a response is not whole or not of `policy_version`.
            PluginError: when the rollout function returns other samples than asked for.
        """
        tools = Tools(self.generator, self.scorer, self.tokenizer)
        group = Group(group_id, prompt, await self.function.run(prompt, group_id, params, tools))
        check_group(group, len(params))
        for sample in group.samples:
            check_sample(sample, policy_version, logprobs=logprobs)
            sample.response_text = self.tokenizer.decode(sample.response_ids)
        return group

    async def score(self, group: Group) -> None:
        """Set the verdict of each sample.

        Raises:
            RewardError: when the scorer returns other verdicts than asked for.
        """
        verdicts = await self.scorer.score(group.samples, group.prompt)
        check_verdicts(group, verdicts)
        for sample, verdict in zip(group.samples, verdicts, strict=True):
            sample.verdict = verdict
