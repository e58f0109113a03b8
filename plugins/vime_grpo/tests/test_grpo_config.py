import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from vime_core.errors import ConfigError
from vime_core.plugins.interfaces import Needs
from vime_grpo import hooks
from vime_grpo.config import GRPOConfig
from vime_grpo.grpo import GRPO

README = Path(__file__).parents[1] / "README.md"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, {}),
        ({"updates_per_rollout": 4}, {"old_logprobs": True, "updates_per_rollout": 4}),
        ({"old_logprobs": "rollout"}, {"rollout_logprobs": True}),
        (
            {"old_logprobs": "rollout", "updates_per_rollout": 4},
            {"rollout_logprobs": True, "updates_per_rollout": 4},
        ),
        ({"kl_coef": 0.001}, {"ref_logprobs": True}),
        ({"entropy_coef": 0.01}, {"entropy": True}),
    ],
)
def test_needs_follow_from_the_settings(settings, expected):
    nothing = {"old_logprobs": False, "ref_logprobs": False, "rollout_logprobs": False, "entropy": False}
    assert GRPO(GRPOConfig(**settings)).needs() == Needs(**{**nothing, **expected})


@pytest.mark.parametrize("norm_tokens", [None, 0, -5])
def test_token_sum_norm_needs_its_divisor(norm_tokens):
    with pytest.raises(ConfigError, match=r"algorithm.norm_tokens=\S+: .*set a positive number of tokens"):
        GRPO(GRPOConfig(loss_agg="seq_mean_token_sum_norm", norm_tokens=norm_tokens))


@pytest.mark.parametrize("loss_agg", ["token_mean", "seq_mean"])
def test_a_divisor_that_is_not_used_is_an_error(loss_agg):
    with pytest.raises(ConfigError, match=f"norm_tokens=512 is not used with algorithm.loss_agg={loss_agg}"):
        GRPO(GRPOConfig(loss_agg=loss_agg, norm_tokens=512))


def test_the_entry_leads_to_the_algorithm():
    (entry,) = hooks.vime_algorithms()
    assert entry.name == GRPOConfig().name == "grpo"
    assert entry.unavailable() is None
    assert isinstance(entry.load()(entry.config()), GRPO)


def test_the_driver_needs_no_torch_for_advantages_and_needs():
    program = """
import sys
from vime_grpo import hooks
entry, = hooks.vime_algorithms()
entry.load()(entry.config()).needs()
print(sorted({"torch", "ray", "vllm", "megatron", "transformers"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"


def test_the_readme_lists_every_setting_with_its_default():
    section = README.read_text().partition("## Settings")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", section, re.MULTILINE))
    settings = {field.name: getattr(GRPOConfig(), field.name) for field in dataclasses.fields(GRPOConfig)}
    del settings["name"]
    assert rows == {
        name: default if isinstance(default, str) else json.dumps(default) for name, default in settings.items()
    }
