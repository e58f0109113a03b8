"""Request bodies and answers of the generate route."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from vime_core.errors import EngineError
from vime_core.types import SamplingParams, VersionSpan
from vime_vllm.completion import parse_completion, request_body

ANSWER = {
    "choices": [
        {
            "index": 0,
            "finish_reason": "stop",
            "token_ids": [5, 9, 2],
            "logprobs": {
                "content": [
                    {"token_id": 5, "logprob": -0.5},
                    {"token_id": 9, "logprob": -1.25},
                    {"token_id": 2, "logprob": 0.0},
                ]
            },
            "weight_versions": [{"version": "3", "start": 0, "end": 2}, {"version": "4", "start": 2, "end": 3}],
        }
    ]
}


def test_a_whole_answer():
    completion = parse_completion(ANSWER)
    assert completion.token_ids.dtype == np.int64
    assert completion.token_ids.tolist() == [5, 9, 2]
    assert completion.logprobs.dtype == np.float32
    assert completion.logprobs.tolist() == [-0.5, -1.25, 0.0]
    assert completion.finish_reason == "stop"
    assert completion.policy_versions == (VersionSpan(3, 0, 2), VersionSpan(4, 2, 3))


def test_an_aborted_request_may_have_no_tokens():
    choice = {"finish_reason": "abort", "token_ids": [], "logprobs": {"content": []}, "weight_versions": None}
    completion = parse_completion({"choices": [choice]})
    assert completion.finish_reason == "abort"
    assert len(completion.token_ids) == len(completion.logprobs) == 0
    assert completion.policy_versions == ()


def _broken(change):
    answer = copy.deepcopy(ANSWER)
    change(answer["choices"][0])
    return answer


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda c: c["logprobs"]["content"].pop(), "3 tokens and 2 log-probs"),
        (lambda c: c["token_ids"].append(7), "4 tokens and 3 log-probs"),
        (lambda c: c["logprobs"]["content"][1].update(token_id=8), "not one of each token"),
        (lambda c: c["logprobs"]["content"][1].update(logprob=-9999.0), "log-prob of token 1 of 3"),
        (lambda c: c["logprobs"]["content"][1].update(logprob=float("nan")), "log-prob of token 1 of 3"),
        (lambda c: c["logprobs"]["content"][1].update(logprob=None), "log-prob of token 1 of 3"),
        (lambda c: c.update(logprobs=None), "no completion"),
        (lambda c: c.pop("token_ids"), "no completion"),
        (lambda c: c.update(finish_reason="repetition"), "reason 'repetition'"),
        (lambda c: c["weight_versions"][0].update(version="default"), "not pushed before"),
        (lambda c: c["weight_versions"].pop(), "sampled 2 tokens of a response of 3"),
        (lambda c: c["weight_versions"].pop(0), "which policy sampled tokens 0 to 2"),
        (lambda c: c.update(weight_versions=None), "sampled 0 tokens of a response of 3"),
    ],
)
def test_nothing_is_filled_in(change, told):
    with pytest.raises(EngineError, match=told):
        parse_completion(_broken(change))


@pytest.mark.parametrize("answer", [None, [], {}, {"choices": []}, {"choices": [{}, {}]}, {"choices": [None]}])
def test_no_answer_at_all(answer):
    with pytest.raises(EngineError, match="no completion"):
        parse_completion(answer)


def test_every_sampling_setting_is_sent():
    params = SamplingParams(temperature=0.7, top_p=0.9, top_k=5, max_tokens=8, stop_token_ids=(2, 3), seed=11)
    body = request_body(np.array([4, 5]), params)
    assert body["token_ids"] == [4, 5]
    assert type(body["token_ids"][0]) is int
    sent = body["sampling_params"]
    assert (sent["temperature"], sent["top_p"], sent["top_k"], sent["max_tokens"]) == (0.7, 0.9, 5, 8)
    assert (sent["stop_token_ids"], sent["seed"], sent["logprobs"]) == ([2, 3], 11, 0)
