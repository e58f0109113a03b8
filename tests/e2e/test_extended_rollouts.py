"""Packages of `examples/` in a real run: two turns, dynamic sampling, and rewards by data source.

Rows of source `math` are judged by `dapo_math` too, which a random model never satisfies: each gets a hint. Rows of
source `echo` are right at once. Those of source `flat` all get one score and are dropped.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from vime_core.data.tokenizer import Tokenizer
from vime_core.run.rollouts import read_rollouts
from vime_core.types import VERDICT_STATUSES

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

EXAMPLES = Path(__file__).parents[2] / "examples"
PACKAGES = ("vime-two-turn", "vime-dynamic-sampling")
PIP = ("-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check")
HINT = "No."


@pytest.fixture(scope="module")
def installed(world):
    """The packages as pip installs them, beside the reward of the world and out of the environment."""
    folders = [str(EXAMPLES / package) for package in PACKAGES]
    subprocess.run([sys.executable, *PIP, "--target", str(world.site.folder), *folders], check=True, timeout=300)


@pytest.fixture(scope="module")
def extended_run(world, installed):
    file = world.folder / "sources.jsonl"
    rows = [
        {"prompt": f"sum up {row}", "label": "1", "data_source": ("math", "echo", "flat")[row % 3]} for row in range(24)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    finished = world.run(
        f"data.train={file}",
        "train.steps=2",
        "rollout.max_response_tokens=72",
        "rollout_function=two_turn",
        f"rollout_function.hint='{HINT}'",
        "rollout_function.first_share=0.25",
        "filter=[dynamic_sampling]",
        "rollout.partial_batch=false",
        "reward=[echo,dapo_math,length_penalty]",
        "rewards.echo.data_sources=[math,echo]",
        "rewards.echo.weight=2",
        "rewards.dapo_math.data_sources=[m?th]",
        "rewards.length_penalty.max_tokens=1000",
    )
    assert finished.status == 0, finished.output
    return finished


@pytest.fixture(scope="module")
def groups(extended_run):
    files = sorted((extended_run.folder / "rollouts").glob("*.parquet"))
    assert len(files) == 2
    return [group for file in files for group in read_rollouts(file)]


def samples_from(groups, source):
    samples = [sample for group in groups for sample in group.samples if group.prompt.data_source == source]
    assert samples
    return samples


def test_a_wrong_answer_is_followed_by_a_masked_hint_and_a_second_try(world, groups):
    tokenizer = Tokenizer(world.model)
    [hint] = tokenizer.encode_batch([f"<|im_end|>\n<|im_start|>user\n{HINT}<|im_end|>\n<|im_start|>assistant\n"])
    for sample in samples_from(groups, "math"):
        assert sample.metadata["first_try"] in ("wrong", "unparseable")
        injected = np.flatnonzero(~sample.loss_mask)
        begin, end = injected[0], injected[-1] + 1
        assert injected.tolist() == list(range(begin, end))
        ended_itself = sample.response_ids[begin - 1] == hint[0]
        assert sample.response_ids[begin:end].tolist() == hint[int(ended_itself) :]
        assert 0 < begin <= 72 // 4
        assert end < len(sample.response_ids) <= 72
        assert (sample.rollout_logprobs[begin:end] == 0).all()
        assert (sample.rollout_logprobs[sample.loss_mask] < 0).all()
        assert HINT in sample.response_text


@pytest.mark.parametrize("source", ["echo", "flat"])
def test_a_right_answer_stands(groups, source):
    for sample in samples_from(groups, source):
        assert sample.metadata["first_try"] == "correct"
        assert sample.loss_mask.all()


def test_the_trainer_sees_the_turns_as_the_engines_did(extended_run):
    assert all(row["train/train_rollout_logprob_abs_diff"] < 1e-4 for row in extended_run.metrics)
    assert all(row["train/grad_norm"] > 0 for row in extended_run.metrics)
    assert [row["sync/policy_version"] for row in extended_run.metrics] == [1, 2]


def test_dropped_groups_are_replaced_until_the_batch_is_full(extended_run, groups):
    tried = len(groups)
    flat = sum(group.prompt.data_source == "flat" for group in groups)
    assert 0 < flat == tried - 12
    told = {
        key: sum(row.get(f"rollout/{key}", 0) for row in extended_run.metrics)
        for key in ("tried_groups", "dropped_groups", "dropped_equal_scores", "missing_groups")
    }
    assert told == {"tried_groups": tried, "dropped_groups": flat, "dropped_equal_scores": flat, "missing_groups": 0}


def test_each_reward_judges_its_rows_and_tells_its_own_numbers(extended_run, groups):
    judging = {"math": ["echo", "dapo_math", "length_penalty"], "echo": ["echo", "length_penalty"]}
    for source in ("math", "echo", "flat"):
        for sample in samples_from(groups, source):
            parts = sample.parts
            assert [*parts] == judging.get(source, ["length_penalty"])
            weights = {"echo": 2.0, "dapo_math": 1.0, "length_penalty": 1.0}
            assert sample.verdict.score == sum(weights[name] * part["score"] for name, part in parts.items())
            assert sample.verdict.status == parts.get("dapo_math", {"status": "correct"})["status"]
    for row in extended_run.metrics:
        assert 0 < row["reward/echo/mean"] < 1
        assert row["reward/length_penalty/mean"] == 0
        assert row["reward/dapo_math/mean"] == 0
        assert sum(row[f"reward/dapo_math/verdict_{status}"] for status in VERDICT_STATUSES) == pytest.approx(1)
        assert row["reward/echo/verdict_correct"] == 1


def test_the_report_shows_each_reward(extended_run):
    command = [sys.executable, "-m", "vime_core.cli", "report", str(extended_run.folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    page = Path(done.stdout.split()[-1]).read_text()
    assert "reward/dapo_math/mean" in page
    assert "Each reward, before its weight" in page


@pytest.mark.parametrize("package", PACKAGES)
def test_the_packages_pass_their_own_tests(world, installed, package):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(EXAMPLES / package)]
    done = subprocess.run(
        command,
        env={"PYTHONPATH": str(world.site.folder), "PYTHONDONTWRITEBYTECODE": "1", "PATH": ""},
        cwd=world.folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
