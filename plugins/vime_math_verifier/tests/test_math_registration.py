"""What the plugin registers, and the reward object."""

import asyncio
import subprocess
import sys

import numpy as np
import pytest

from vime_core.config.schema import RewardPoolConfig
from vime_core.rewards.pool import RewardPool, RewardSpec
from vime_core.types import Prompt, Sample, Verdict
from vime_math_verifier.hooks import vime_rewards


def sample_with(text):
    return Sample(
        prompt_id="p",
        group_id="g",
        index=0,
        prompt_ids=np.zeros(1, np.int64),
        response_ids=np.zeros(2, np.int64),
        loss_mask=np.ones(2, np.bool_),
        rollout_logprobs=np.zeros(2, np.float32),
        finish_reason="stop",
        policy_versions=(),
        response_text=text,
    )


@pytest.mark.parametrize(
    ("text", "settings", "expected"),
    [
        ("Answer: 34", {}, Verdict(1.0, "correct", "34")),
        ("Answer: 35", {}, Verdict(0.0, "wrong", "35", "expected 34")),
        ("Answer: 35", {"wrong_score": -1.0}, Verdict(-1.0, "wrong", "35", "expected 34")),
        (r"\boxed{34}", {}, Verdict(1.0, "correct", "34")),
        (r"\boxed{34}", {"boxed_fallback": False}, Verdict(0.0, "unparseable", None, "no 'Answer:' in the response")),
    ],
)
def test_reward_of_the_entry(text, settings, expected):
    entry = vime_rewards()[0]
    assert (entry.name, entry.unavailable()) == ("dapo_math", None)
    reward = entry.load()(entry.config(**settings))
    prompt = Prompt(id="p", messages=(), token_ids=(1,), label="34")
    assert reward.score(sample_with(text), prompt) == expected


def test_reward_imports_nothing_heavy():
    code = (
        "import sys, vime_math_verifier.hooks, vime_math_verifier.reward;"
        "print([m for m in ('torch', 'transformers', 'ray', 'sympy', 'numpy') if m in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert answer.stdout.strip() == "[]"


def test_scores_in_the_pool():
    entry = vime_rewards()[0]
    spec = RewardSpec(entry.name, entry.factory, entry.config(wrong_score=-1.0))
    samples = [sample_with("Answer: 34"), sample_with("Answer: 35"), sample_with("no")]
    with RewardPool([spec], config=RewardPoolConfig(time_limit_s=60.0)) as pool:
        verdicts = asyncio.run(pool.score(samples, Prompt(id="p", messages=(), token_ids=(1,), label="34")))
        [broken] = asyncio.run(pool.score(samples[:1], Prompt(id="p", messages=(), token_ids=(1,), label="x")))
    assert [(verdict.score, verdict.status) for verdict in verdicts] == [
        (1.0, "correct"),
        (-1.0, "wrong"),
        (-1.0, "unparseable"),
    ]
    assert broken == Verdict(0.0, "error", None, "dapo_math: ground truth 'x' is not an integer")
