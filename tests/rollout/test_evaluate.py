import asyncio
import json
from dataclasses import replace

import numpy as np
import pytest

from vime_core.config.schema import EvalSetConfig, RolloutConfig
from vime_core.data.config import FilesConfig
from vime_core.errors import DataError, EngineError
from vime_core.rollout.config import SingleTurnConfig
from vime_core.rollout.evaluate import EvalSet, Evaluator, load_eval_sets
from vime_core.rollout.single_turn import SingleTurn
from vime_core.testing.fakes import NumberTokenizer, ScriptedGenerator, ScriptedScorer
from vime_core.types import Verdict


def by_value(sample, prompt):
    """Right when the response is the prompt's number; 99 is lost."""
    if sample.response_text == "99":
        return Verdict(0.0, "timeout")
    return Verdict(1.0, "correct") if sample.response_text == prompt.label else Verdict(0.0, "wrong")


def make_evaluator(sets, generator, **settings):
    config = RolloutConfig(**{"name": "scripted", "prompts_per_step": 2, "samples_per_prompt": 2} | settings)
    parts = (SingleTurn(SingleTurnConfig()), generator, ScriptedScorer(by_value), NumberTokenizer())
    return Evaluator(sets, *parts, config, 0, (0,))


def evaluate(evaluator, policy_version=0):
    return asyncio.run(evaluator.evaluate(policy_version))


@pytest.fixture
def make_set(make_prompt):
    def make(numbers, name="math", **settings):
        return EvalSet(name, EvalSetConfig(path="x", **settings), [make_prompt(number) for number in numbers], {})

    return make


def test_each_set_gets_its_accuracy(make_set):
    sets = [make_set([1, 2, 3, 4]), make_set([5], "other")]
    generator = ScriptedGenerator(lambda request: [min(request.token_ids[0], 3)])
    metrics = evaluate(make_evaluator(sets, generator))
    assert metrics["eval/math/accuracy"] == 0.75
    assert metrics["eval/other/accuracy"] == 0.0
    assert metrics["eval/math/failed"] == 0.0
    assert [request.token_ids[0] for request in generator.requests] == [1, 2, 3, 4, 5]


def test_samples_without_a_verdict_are_left_out_and_counted(make_set):
    def answer(request):
        return [99] if request.params.seed % 2 else [request.token_ids[0]]

    generator = ScriptedGenerator(answer)
    metrics = evaluate(make_evaluator([make_set(range(20), samples_per_prompt=4, temperature=0.5)], generator))
    lost = sum(request.params.seed % 2 for request in generator.requests)
    assert 0 < lost < 80
    assert metrics["eval/math/accuracy"] == 1.0
    assert metrics["eval/math/failed"] == lost


def test_greedy_requests_have_temperature_zero(make_set):
    generator = ScriptedGenerator(lambda request: [1])
    evaluate(make_evaluator([make_set([1, 2])], generator))
    assert {request.params.temperature for request in generator.requests} == {0.0}


def test_the_logprobs_of_greedy_samples_do_not_matter(make_set):
    class Infinite(ScriptedGenerator):
        async def generate(self, token_ids, params, *, engine=None):
            completion = await super().generate(token_ids, params, engine=engine)
            return replace(completion, logprobs=np.full_like(completion.logprobs, -np.inf))

    generator = Infinite(lambda request: [request.token_ids[0]])
    assert evaluate(make_evaluator([make_set([1, 2])], generator))["eval/math/accuracy"] == 1.0
    with pytest.raises(EngineError, match="log-prob of response token 0 is not finite"):
        evaluate(make_evaluator([make_set([1, 2], temperature=0.5)], generator))


def test_an_evaluation_makes_as_many_requests_at_a_time_as_a_training_step(make_set):
    generator = ScriptedGenerator(lambda request: [1])
    evaluate(make_evaluator([make_set(range(30))], generator, prompts_per_step=3, samples_per_prompt=4))
    assert generator.most_running == 12
    generator = ScriptedGenerator(lambda request: [1])
    evaluate(make_evaluator([make_set(range(30), samples_per_prompt=5)], generator))
    assert generator.most_running == 5


def test_every_evaluation_of_a_set_has_the_same_seeds(make_set):
    seeds = []
    for _ in range(2):
        generator = ScriptedGenerator(lambda request: [1])
        evaluate(make_evaluator([make_set([1, 2], samples_per_prompt=2, temperature=1.0)], generator))
        seeds.append([request.params.seed for request in generator.requests])
    assert seeds[0] == seeds[1]
    assert len(set(seeds[0])) == 4


def test_the_length_limit_is_that_of_the_rollout(make_set):
    generator = ScriptedGenerator(lambda request: [1] * 50)
    metrics = evaluate(make_evaluator([make_set([1, 2])], generator, max_response_tokens=7))
    assert metrics["eval/math/response_len_mean"] == 7.0
    assert metrics["eval/math/truncated_ratio"] == 1.0


def test_an_engine_failure_is_raised_as_it_is(make_set):
    error = EngineError("engine 0 died")

    def answer(request):
        raise error

    with pytest.raises(EngineError) as caught:
        evaluate(make_evaluator([make_set([1, 2])], ScriptedGenerator(answer)))
    assert caught.value is error


def test_responses_of_an_old_policy_are_refused(make_set):
    with pytest.raises(EngineError, match="policy version 0, must be 5"):
        evaluate(make_evaluator([make_set([1])], ScriptedGenerator(lambda request: [1])), policy_version=5)


@pytest.fixture
def heldout(tmp_path):
    path = tmp_path / "heldout.jsonl"
    rows = [{"question": "x" * length, "label": "1"} for length in (5, 500, 6, 7)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_sets_are_read_in_file_order_up_to_a_number_of_rows(heldout, byte_tokenizer):
    evals = {"all": EvalSetConfig(path=str(heldout)), "some": EvalSetConfig(path=str(heldout), max_prompts=3)}
    keys = FilesConfig(prompt_key="question")
    everything, some = load_eval_sets(evals, keys, byte_tokenizer, 100)
    assert [prompt.id for prompt in everything.prompts] == ["heldout.jsonl:1", "heldout.jsonl:3", "heldout.jsonl:4"]
    assert [prompt.id for prompt in some.prompts] == ["heldout.jsonl:1", "heldout.jsonl:3"]
    assert everything.report["too_long"] == 1
    assert some.report["rows"] == 3


def test_a_faulty_set_is_named(heldout, byte_tokenizer):
    with pytest.raises(DataError, match=r"^evals\.math\.path: .*heldout.jsonl: neither the DAPO schema"):
        load_eval_sets({"math": EvalSetConfig(path=str(heldout))}, FilesConfig(), byte_tokenizer, 100)
