import asyncio

import numpy as np
import pytest

from vime_core.errors import EngineError
from vime_core.rollout.config import SingleTurnConfig
from vime_core.rollout.single_turn import SingleTurn
from vime_core.testing.fakes import ScriptedGenerator
from vime_core.types import VersionSpan


def run(generator, prompt, params):
    return asyncio.run(SingleTurn(SingleTurnConfig()).run(prompt, "g", params, generator))


def test_each_of_the_params_makes_the_sample_at_its_place(make_prompt, make_params):
    generator = ScriptedGenerator(lambda request: [10 + request.params.seed, 0], policy_version=3)
    samples = run(generator, make_prompt(7), make_params(3))
    assert [sample.index for sample in samples] == [0, 1, 2]
    assert [sample.response_ids.tolist() for sample in samples] == [[10, 0], [11, 0], [12, 0]]
    for sample in samples:
        assert (sample.prompt_id, sample.group_id, sample.finish_reason) == ("p7", "g", "stop")
        assert sample.prompt_ids.tolist() == [7]
        assert sample.loss_mask.tolist() == [True, True]
        assert sample.rollout_logprobs.tolist() == [-0.5, -0.5]
        assert sample.policy_versions == (VersionSpan(3, 0, 2),)
        assert sample.verdict is None


def test_all_responses_are_generated_at_the_same_time(make_prompt, make_params):
    generator = ScriptedGenerator(lambda request: [1])
    run(generator, make_prompt(7), make_params(5))
    assert generator.most_running == 5
    assert [request.token_ids for request in generator.requests] == [(7,)] * 5


def test_a_cut_response_gets_no_end_of_sequence(make_prompt, make_params):
    [sample] = run(ScriptedGenerator(lambda request: [5, 6, 7, 8, 0]), make_prompt(7), make_params(1, max_tokens=3))
    assert sample.response_ids.tolist() == [5, 6, 7]
    assert sample.finish_reason == "length"
    assert sample.loss_mask.all()


def test_an_empty_response_is_a_sample(make_prompt, make_params):
    [sample] = run(ScriptedGenerator(lambda request: []), make_prompt(7), make_params(1))
    assert (len(sample.response_ids), sample.loss_mask.dtype) == (0, np.bool_)


def test_a_failed_request_ends_the_others(make_prompt, make_params):
    async def before(request):
        if request.params.seed != 1:
            await asyncio.Event().wait()

    def answer(request):
        raise EngineError("engine 0 is gone")

    generator = ScriptedGenerator(answer, before)
    with pytest.raises(EngineError, match="engine 0 is gone"):
        run(generator, make_prompt(7), make_params(3))
    assert generator.running == 0
