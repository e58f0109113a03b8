"""Rollout backends: `Good`, and others that are wrong in one way. The docstring says how, and which test finds it."""

import random
from dataclasses import replace

import numpy as np

from vime_core.testing.engines import InProcessBackend


class Good(InProcessBackend):
    """Engines in this process."""


class ClosesOnlyWhatRuns(Good):
    """test_it_can_be_closed_before_it_was_started: closing what was not started raises."""

    def close(self):
        if not self._engines:
            raise RuntimeError("not started")
        super().close()


class AnswersAlways(Good):
    """test_before_the_start_it_says_that_it_does_not_run: health without engines is fine."""

    def health(self):
        return None


class OneName(Good):
    """test_every_engine_has_an_endpoint: all engines have one name."""

    def endpoints(self):
        return [replace(endpoint, name="engine") for endpoint in super().endpoints()]


class NoKey(Good):
    """test_every_engine_has_an_endpoint: engines that ask for no key."""

    def endpoints(self):
        return [replace(endpoint, key="") for endpoint in super().endpoints()]


class LogprobsInDouble(Good):
    """test_a_completion_is_whole: float64 log-probs."""

    async def generate(self, token_ids, params, *, engine=None):
        completion = await super().generate(token_ids, params, engine=engine)
        return replace(completion, logprobs=completion.logprobs.astype(np.float64))


class ProbabilitiesNotLogs(Good):
    """test_a_completion_is_whole: probabilities instead of log-probs."""

    async def generate(self, token_ids, params, *, engine=None):
        completion = await super().generate(token_ids, params, engine=engine)
        return replace(completion, logprobs=np.exp(completion.logprobs))


class NoVersions(Good):
    """test_a_completion_is_whole: does not say which policy sampled."""

    async def generate(self, token_ids, params, *, engine=None):
        return replace(await super().generate(token_ids, params, engine=engine), policy_versions=())


class CutIsStop(Good):
    """test_a_completion_is_whole: a response that was cut says that it stopped."""

    async def generate(self, token_ids, params, *, engine=None):
        return replace(await super().generate(token_ids, params, engine=engine), finish_reason="stop")


class LosesTheStopToken(Good):
    """test_a_stop_token_ends_the_response_and_belongs_to_it: leaves the stop token out."""

    async def generate(self, token_ids, params, *, engine=None):
        completion = await super().generate(token_ids, params, engine=engine)
        if completion.finish_reason != "stop":
            return completion
        return replace(completion, token_ids=completion.token_ids[:-1], logprobs=completion.logprobs[:-1])


class IgnoresStop(Good):
    """test_a_stop_token_ends_the_response_and_belongs_to_it: goes on to max_tokens."""

    async def generate(self, token_ids, params, *, engine=None):
        return await super().generate(token_ids, replace(params, stop_token_ids=()), engine=engine)


class IgnoresTheSeed(Good):
    """test_a_seed_makes_a_response_repeatable: samples anew."""

    async def generate(self, token_ids, params, *, engine=None):
        return await super().generate(token_ids, replace(params, seed=random.randrange(10**6)), engine=engine)


class OneSeed(Good):
    """test_a_seed_makes_a_response_repeatable: all seeds give one response."""

    async def generate(self, token_ids, params, *, engine=None):
        return await super().generate(token_ids, replace(params, seed=1), engine=engine)


class AnyEngine(Good):
    """test_an_engine_that_is_not_there_is_told: answers from another engine."""

    async def generate(self, token_ids, params, *, engine=None):
        return await super().generate(token_ids, params)


class NeverPauses(Good):
    """test_paused_engines_answer_nothing_until_they_resume: `pause` does nothing."""

    async def pause(self):
        pass


class AbortsNothing(Good):
    """test_abort_ends_what_is_in_flight: requests go on as if nothing had happened."""

    async def abort(self):
        self._paused = False


class ForgetsAsleep(Good):
    """test_engines_answer_after_sleep_and_wake: waking up leaves the engines behind."""

    async def wake(self):
        self._engines = {}


class BlockingGenerate(Good):
    """test_the_component_has_the_methods_of_its_kind: `generate` is not a coroutine."""

    def generate(self, token_ids, params, *, engine=None):
        return None
