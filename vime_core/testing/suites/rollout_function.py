"""Conformance of rollout functions."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from vime_core.errors import EngineError, VimeError
from vime_core.plugins.interfaces import RolloutFunction
from vime_core.rollout.checks import check_group, check_sample
from vime_core.testing.contract import Nonconformance, require, require_equal
from vime_core.testing.fakes import ScriptedTools
from vime_core.testing.prompts import make_prompt
from vime_core.testing.suite import ComponentSuite
from vime_core.types import VERDICT_STATUSES, Group, SamplingParams, Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vime_core.testing.fakes import Request
    from vime_core.types import Prompt, Sample, VerdictStatus

FIRST_SAMPLED = 1000
"""The scripted generator answers with token ids from here on; prompts and injected text have smaller ones."""

LOGPROB = -0.5
"""Of every token of the scripted generator."""

DEADLINE_S = 30.0

PARAMS = SamplingParams(temperature=0.7, top_p=1.0, top_k=-1, max_tokens=512, stop_token_ids=(2,), seed=0)


class RolloutFunctionSuite(ComponentSuite):
    """Tests of a rollout function, on engines that answer at once and rewards that find every second sample wrong."""

    group = "rollout_function"
    interface = RolloutFunction

    def test_there_is_one_whole_sample_for_each_parameter(self) -> None:
        """Labelled, without gaps in the policy versions, every array as long as the response."""
        for count in (1, 4):
            _require_whole(self.rollout(count), count)

    def test_samples_are_whole_whatever_the_rewards_say(self) -> None:
        """Also when none of them can judge."""
        for status in VERDICT_STATUSES:
            _require_whole(self.rollout(2, _tools(status)), 2)

    def test_the_policy_is_trained_on_its_own_tokens_only(self) -> None:
        """The loss mask is False for every token that was injected, and log-probs are the generator's."""
        for sample in self.rollout(3).samples:
            chosen = sample.response_ids[sample.loss_mask]
            require(bool((chosen >= FIRST_SAMPLED).all()), "the mask holds tokens that the generator did not sample")
            require(len(chosen) > 0, "a sample has no token to train on, though the generator answered")
            logprobs = sample.rollout_logprobs[sample.loss_mask]
            require(bool(np.allclose(logprobs, LOGPROB)), "log-probs are not those that the generator gave")

    def test_sampling_is_as_it_was_asked_for(self) -> None:
        """Each sample with its own parameters: seeds make them differ."""
        generator = _tools()
        self.rollout(3, generator)
        for request in generator.requests:
            asked = replace(request.params, seed=None, max_tokens=PARAMS.max_tokens)
            require_equal(asked, replace(PARAMS, seed=None), "the sampling parameters of a request")
            require(request.params.max_tokens <= PARAMS.max_tokens, "a request asks for more tokens than allowed")
            require_equal(request.engine, None, "the engine of a request: the router chooses")
        first = {request.params.seed for request in generator.requests[:3]}
        require(len(first) == 3, "samples of one prompt share a seed, and would be the same")

    def test_samples_are_generated_side_by_side(self) -> None:
        """One after the other would leave engines idle."""
        generator = _tools()
        self.rollout(4, generator)
        require(generator.most_running == 4, f"of 4 samples only {generator.most_running} were generated at one time")

    def test_an_engine_that_fails_is_told_and_nothing_stays_behind(self) -> None:
        """The error of the generator passes through; no task is left."""

        def fails(request: Request) -> Sequence[int]:
            if request.params.seed == 2:
                raise EngineError("engine-0 died")
            return _answer(request)

        async def run() -> int:
            before = asyncio.all_tasks()
            try:
                await self.make().run(make_prompt(), "group", _params(4), ScriptedTools(fails, policy_version=7))
            except EngineError:
                return len(asyncio.all_tasks() - before)
            raise Nonconformance("the EngineError of the generator is swallowed")

        require_equal(asyncio.run(asyncio.wait_for(run(), DEADLINE_S)), 0, "the number of tasks left behind")

    def rollout(self, count: int, tools: ScriptedTools | None = None) -> Group:
        """The samples of one prompt."""
        prompt = make_prompt("prompt")
        run = self.make().run(prompt, "group-3", _params(count), tools or _tools())
        samples: list[Sample] = asyncio.run(asyncio.wait_for(run, DEADLINE_S))
        return Group("group-3", prompt, samples)


def _answer(request: Request) -> Sequence[int]:
    seed = request.params.seed or 0
    return range(FIRST_SAMPLED, FIRST_SAMPLED + 3 + seed)


def _tools(status: VerdictStatus | None = None) -> ScriptedTools:
    """Rewards that say `status`, or find every second sample wrong."""

    def verdict(sample: Sample, prompt: Prompt) -> Verdict:
        return Verdict(0.0, status or ("wrong", "correct")[sample.index % 2])

    return ScriptedTools(_answer, policy_version=7, verdict=verdict)


def _require_whole(group: Group, count: int) -> None:
    try:
        check_group(group, count)
        for sample in group.samples:
            check_sample(sample, policy_version=7)
    except VimeError as error:
        raise Nonconformance(str(error)) from error
    for sample in group.samples:
        require_equal(sample.prompt_ids.tolist(), list(group.prompt.token_ids), "the prompt of a sample")
        require(sample.verdict is None, "the verdict belongs to the rewards, not to the rollout function")
        length = len(sample.response_ids)
        require(length <= PARAMS.max_tokens, f"a response of {length} tokens, where {PARAMS.max_tokens} are allowed")


def _params(count: int) -> list[SamplingParams]:
    return [replace(PARAMS, seed=index) for index in range(count)]
