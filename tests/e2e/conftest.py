"""Whole runs of `vime train`, as processes of their own, on a tiny random model."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import pytest

from vime_core.run.folder import RunFolder
from vime_core.run.metrics import read_metrics
from vime_core.testing.distributions import FakeSite
from vime_core.testing.tokenizers import write_byte_tokenizer
from vime_core.types import Group, Prompt, Sample, Verdict, VersionSpan

RUN_DEADLINE_S = 420
PROMPTS = 24

REWARD_HOOKS = """
    from vime_core import hookimpl
    from vime_core.plugins.entries import RewardEntry

    from echo_reward.config import EchoConfig


    @hookimpl
    def vime_rewards():
        return [RewardEntry(name="echo", summary="few large bytes", config=EchoConfig,
                            factory="echo_reward.reward:Echo")]
"""

REWARD_CONFIG = """
    from dataclasses import dataclass

    from vime_core.config.schema import RewardConfig


    @dataclass(kw_only=True)
    class EchoConfig(RewardConfig):
        threshold: int = 128
        correct_above: float = -1.0
"""

REWARD = """
    from vime_core.types import Verdict


    class Echo:
        # The share of small token ids: any sampled response gets a fractional score, so even a random model learns.
        def __init__(self, config):
            self.threshold = config.threshold
            self.correct_above = config.correct_above

        def score(self, sample, prompt):
            small = sum(int(token) < self.threshold for token in sample.response_ids)
            share = small / len(sample.response_ids)
            return Verdict(score=share, status="correct" if share > self.correct_above else "wrong")
"""


@dataclass(frozen=True)
class Finished:
    """A run that has ended, or a command that was refused."""

    status: int
    output: str
    folder: Path | None

    @property
    def metrics(self):
        return read_metrics(self.folder / "metrics.jsonl")


class World:
    """A model, data, a third-party reward, and the command that trains with them."""

    def __init__(self, folder: Path, shell_environment: dict[str, str]) -> None:
        self.folder = folder
        self.shell_environment = shell_environment
        self.site = FakeSite(folder / "site")
        self.site.install(
            "acme-echo-reward",
            {"echo": "echo_reward.hooks"},
            {
                "echo_reward/hooks.py": REWARD_HOOKS,
                "echo_reward/config.py": REWARD_CONFIG,
                "echo_reward/reward.py": REWARD,
            },
        )
        self.model = write_model(folder / "model")
        self.data = write_data(folder / "train.jsonl", words=2)
        self.long_data = write_data(folder / "long.jsonl", words=60)
        self.roots = 0

    def command(self, *overrides: str) -> list[str]:
        self.roots += 1
        settings = [
            "hardware=cpu",
            "reward=[echo]",
            f"model.path={self.model}",
            f"data.train={self.data}",
            f"run.root={self.folder}/outputs{self.roots}",
            "train.lr=1e-3",
            "rollout.prompts_per_step=6",
            "rollout.samples_per_prompt=4",
            "rollout.max_prompt_tokens=512",
            "rollout.max_response_tokens=12",
        ]
        return [sys.executable, "-m", "vime_core.cli", "train", *settings, *overrides]

    def start(self, *overrides: str) -> subprocess.Popen:
        return self.launch(self.command(*overrides))

    def run(self, *overrides: str) -> Finished:
        return self.finish(self.start(*overrides))

    def vime(self, *arguments: str, **popen) -> Finished:
        """Any command."""
        return self.finish(self.launch([sys.executable, "-m", "vime_core.cli", *arguments], **popen))

    def environment(self, *sites: FakeSite, **more: str) -> dict[str, str]:
        """Of a shell from which the world's packages, and those of `sites`, are found."""
        folders = [str(site.folder) for site in (self.site, *sites)]
        paths = [*folders, *filter(None, [self.shell_environment.get("PYTHONPATH")])]
        return {**self.shell_environment, "PYTHONPATH": os.pathsep.join(paths), **more}

    def launch(self, command: list[str], **popen) -> subprocess.Popen:
        defaults = {
            "env": self.environment(),
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.STDOUT,
        }
        return subprocess.Popen(command, text=True, start_new_session=True, **(defaults | popen))

    @staticmethod
    def finish(process: subprocess.Popen) -> Finished:
        try:
            output, _ = process.communicate(timeout=RUN_DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.terminate()
            output, _ = process.communicate(timeout=120)
            raise AssertionError(f"the run did not end; it printed:\n{output}") from None
        return Finished(process.returncode, output, folder_of(output))


def folder_of(output: str) -> Path | None:
    marked = [line for line in output.splitlines() if line.startswith("run folder: ")]
    return Path(marked[0].removeprefix("run folder: ")) if marked else None


def write_model(folder: Path) -> Path:
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    folder.mkdir()
    write_byte_tokenizer(folder)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=259,
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        rope_theta=10000.0,
        initializer_range=0.1,
        bos_token_id=None,
        eos_token_id=258,
        pad_token_id=None,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder


def write_data(file: Path, *, words: int) -> Path:
    """Prompts that share all but their last number: `words` sets how long the shared part is."""
    lines = [
        {"prompt": [{"role": "user", "content": "sum up " * words + str(row)}], "reward_model": {"ground_truth": "1"}}
        for row in range(PROMPTS)
    ]
    file.write_text("".join(json.dumps({**line, "data_source": "test"}) + "\n" for line in lines))
    return file


def descendants(process: psutil.Process) -> list[psutil.Process]:
    return process.children(recursive=True)


DRAWN_WITH = {
    "prompts_per_step": 6,
    "samples_per_prompt": 4,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "max_prompt_tokens": 512,
    "max_response_tokens": 12,
}


def record(path, *, steps):
    """A run folder with rollouts of random tokens and scores."""
    folder = RunFolder.create_at(path)
    folder.write_config({"rollout": DRAWN_WITH})
    rng = np.random.default_rng(0)
    for step in range(1, steps + 1):
        folder.write_rollouts(step, [random_group(rng, step, row) for row in range(6)], {})
    return path


def random_group(rng, step, row):
    tokens = rng.integers(0, 256, rng.integers(5, 40))
    prompt = Prompt(id=f"p{row}", messages=(), token_ids=tuple(tokens.tolist()), label="1")
    return Group(f"{step}:{row}", prompt, [random_sample(rng, prompt, f"{step}:{row}", i) for i in range(4)])


def random_sample(rng, prompt, group_id, index):
    length = int(rng.integers(1, 13))
    return Sample(
        prompt_id=prompt.id,
        group_id=group_id,
        index=index,
        prompt_ids=np.asarray(prompt.token_ids),
        response_ids=rng.integers(0, 256, length),
        loss_mask=np.ones(length, dtype=bool),
        rollout_logprobs=rng.uniform(-8, 0, length).astype(np.float32),
        finish_reason="length",
        policy_versions=(VersionSpan(0, 0, length),),
        verdict=Verdict(float(rng.random()), "correct"),
    )


@pytest.fixture(scope="session")
def recording(tmp_path_factory):
    """Thirty steps of rollouts."""
    return record(tmp_path_factory.mktemp("recordings") / "run", steps=30)


@pytest.fixture(scope="session")
def long_recording(tmp_path_factory):
    """Three hundred steps of rollouts."""
    return record(tmp_path_factory.mktemp("recordings") / "long", steps=300)


@pytest.fixture(scope="session")
def world(tmp_path_factory, shell_environment):
    return World(tmp_path_factory.mktemp("world"), shell_environment)


@pytest.fixture(scope="session")
def first_run(world):
    """Four steps on prompts with 300 shared tokens; a checkpoint after every second."""
    finished = world.run(
        f"data.train={world.long_data}", "train.steps=4", "rollout.num_engines=2", "checkpoint.every=2"
    )
    assert finished.status == 0, finished.output
    return finished
