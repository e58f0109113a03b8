"""Rollout functions: `Good`, and others that are wrong in one way. The docstring says how, and which test finds it."""

from dataclasses import replace

import numpy as np

from vime_core.errors import EngineError
from vime_core.rollout.single_turn import SingleTurn
from vime_core.types import Verdict, VersionSpan


def inject(sample, token_ids, logprob):
    """The sample with tokens behind it that the policy did not choose."""
    length = len(sample.response_ids) + len(token_ids)
    return replace(
        sample,
        response_ids=np.concatenate([sample.response_ids, token_ids]),
        loss_mask=np.concatenate([sample.loss_mask, np.zeros(len(token_ids), np.bool_)]),
        rollout_logprobs=np.concatenate([sample.rollout_logprobs, np.full(len(token_ids), logprob, np.float32)]),
        policy_versions=(VersionSpan(sample.policy_versions[0].version, 0, length),),
    )


class Good(SingleTurn):
    """One turn."""


class OneTooFew(Good):
    """test_there_is_one_whole_sample_for_each_parameter: leaves out a sample."""

    async def run(self, prompt, group_id, params, generator):
        return (await super().run(prompt, group_id, params, generator))[1:]


class OtherGroup(Good):
    """test_there_is_one_whole_sample_for_each_parameter: makes up a group id."""

    async def run(self, prompt, group_id, params, generator):
        return await super().run(prompt, prompt.id, params, generator)


class ShortLogprobs(Good):
    """test_there_is_one_whole_sample_for_each_parameter: a log-prob is missing."""

    async def run(self, prompt, group_id, params, generator):
        samples = await super().run(prompt, group_id, params, generator)
        return [replace(sample, rollout_logprobs=sample.rollout_logprobs[1:]) for sample in samples]


class Judges(Good):
    """test_there_is_one_whole_sample_for_each_parameter: gives a verdict itself."""

    async def run(self, prompt, group_id, params, generator):
        samples = await super().run(prompt, group_id, params, generator)
        return [replace(sample, verdict=Verdict(1.0, "correct")) for sample in samples]


class NeedsAVerdict(Good):
    """test_samples_are_whole_whatever_the_rewards_say: leaves out samples that could not be checked."""

    async def run(self, prompt, group_id, params, generator):
        samples = await super().run(prompt, group_id, params, generator)
        verdicts = [await generator.check(sample, prompt) for sample in samples]
        return [sample for sample, verdict in zip(samples, verdicts, strict=True) if verdict.status != "timeout"]


class TalksOn(Good):
    """test_there_is_one_whole_sample_for_each_parameter: injects more text than fits."""

    async def run(self, prompt, group_id, params, generator):
        samples = await super().run(prompt, group_id, params, generator)
        return [inject(sample, generator.encode("Think again! " * 100), 0.0) for sample in samples]


class HintsWithoutLogprobs(Good):
    """test_there_is_one_whole_sample_for_each_parameter: nan as the log-prob of injected tokens."""

    async def run(self, prompt, group_id, params, generator):
        samples = await super().run(prompt, group_id, params, generator)
        return [inject(sample, generator.encode("Hint"), np.nan) for sample in samples]


class TrainsOnTheHint(Good):
    """test_the_policy_is_trained_on_its_own_tokens_only: an injected token is in the mask."""

    async def run(self, prompt, group_id, params, generator):
        samples = await super().run(prompt, group_id, params, generator)
        for sample in samples:
            sample.response_ids[0] = 9
        return samples


class MakesUpLogprobs(Good):
    """test_the_policy_is_trained_on_its_own_tokens_only: log-probs that the engine did not give."""

    async def run(self, prompt, group_id, params, generator):
        samples = await super().run(prompt, group_id, params, generator)
        return [replace(s, rollout_logprobs=np.zeros_like(s.rollout_logprobs)) for s in samples]


class Greedy(Good):
    """test_sampling_is_as_it_was_asked_for: another temperature."""

    async def run(self, prompt, group_id, params, generator):
        return await super().run(prompt, group_id, [replace(item, temperature=0.1) for item in params], generator)


class OneSeed(Good):
    """test_sampling_is_as_it_was_asked_for: the first seed for all samples."""

    async def run(self, prompt, group_id, params, generator):
        return await super().run(prompt, group_id, [params[0]] * len(params), generator)


class OneByOne(Good):
    """test_samples_are_generated_side_by_side: waits for each sample before the next."""

    async def run(self, prompt, group_id, params, generator):
        samples = []
        for index, item in enumerate(params):
            [sample] = await super().run(prompt, group_id, [item], generator)
            samples.append(replace(sample, index=index))
        return samples


class HidesTheEngine(Good):
    """test_an_engine_that_fails_is_told_and_nothing_stays_behind: swallows the error of an engine."""

    async def run(self, prompt, group_id, params, generator):
        try:
            return await super().run(prompt, group_id, params, generator)
        except EngineError:
            return []


class Synchronous(Good):
    """test_the_component_has_the_methods_of_its_kind: not a coroutine."""

    def run(self, prompt, group_id, params, generator):
        return []
