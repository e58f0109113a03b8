"""vime's standard tests of rollout functions, and examples of this one."""

import asyncio
from dataclasses import replace

import pytest

from vime_core import Prompt, SamplingParams, Verdict, VersionSpan
from vime_core.testing import RolloutFunctionSuite
from vime_core.testing.fakes import ScriptedTools
from vime_two_turn.config import TwoTurnConfig
from vime_two_turn.rollout import TwoTurns

PROMPT = Prompt(id="p", messages=(), token_ids=(1, 2), label="4")
PARAMS = SamplingParams(temperature=1.0, top_p=1.0, top_k=-1, max_tokens=100, stop_token_ids=(0,), seed=7)
HINT = list(b"\nuser: No.\n")


class TestConformance(RolloutFunctionSuite):
    entry = "two_turn"


class TestWithALongHint(RolloutFunctionSuite):
    entry = "two_turn"
    settings = {"hint": "Think again. " * 100, "first_share": 0.9}


def run(tools, params=PARAMS, **settings):
    function = TwoTurns(TwoTurnConfig(hint="No.", **settings))
    [sample] = asyncio.run(function.run(PROMPT, "g", [params], tools))
    return sample


def says(status):
    return lambda sample, prompt: Verdict(0.0, status)


def answer(request):
    """Three tokens, other ones after the hint."""
    return [1000, 1001, 0] if len(request.token_ids) == 2 else [2000, 0]


@pytest.mark.parametrize("status", ["wrong", "unparseable"])
def test_a_wrong_answer_gets_a_hint_and_a_second_try(status):
    tools = ScriptedTools(answer, policy_version=3, verdict=says(status))
    sample = run(tools)
    assert sample.response_ids.tolist() == [1000, 1001, 0, *HINT, 2000, 0]
    assert sample.loss_mask.tolist() == [True] * 3 + [False] * len(HINT) + [True] * 2
    assert sample.rollout_logprobs.tolist() == [-0.5] * 3 + [0.0] * len(HINT) + [-0.5] * 2
    assert sample.policy_versions == (VersionSpan(3, 0, 3 + len(HINT)), VersionSpan(3, 3 + len(HINT), 5 + len(HINT)))
    assert sample.metadata == {"first_try": status}
    first, second = tools.requests
    assert first.params == replace(PARAMS, max_tokens=50)
    assert second.token_ids == (1, 2, 1000, 1001, 0, *HINT)
    assert second.params == replace(PARAMS, max_tokens=100 - 3 - len(HINT), seed=8)
    [checked] = tools.checked
    assert checked.response_ids.tolist() == [1000, 1001, 0]


@pytest.mark.parametrize("status", ["correct", "timeout", "error"])
def test_otherwise_the_first_answer_stands(status):
    sample = run(ScriptedTools(answer, verdict=says(status)))
    assert sample.response_ids.tolist() == [1000, 1001, 0]
    assert sample.loss_mask.all()
    assert sample.metadata == {"first_try": status}


def test_without_room_there_is_no_second_try():
    left = len(HINT) + 3
    assert len(run(ScriptedTools(answer), replace(PARAMS, max_tokens=left)).response_ids) == 3
    assert len(run(ScriptedTools(answer), replace(PARAMS, max_tokens=left + 1)).response_ids) == left + 1
    assert run(ScriptedTools(answer), replace(PARAMS, max_tokens=1)).response_ids.tolist() == [1000]


def test_without_a_seed_there_is_none():
    tools = ScriptedTools(answer)
    run(tools, replace(PARAMS, seed=None))
    assert [request.params.seed for request in tools.requests] == [None, None]
