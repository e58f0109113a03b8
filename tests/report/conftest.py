"""A run that never ran, written by the real writers, and a browser to look at its report with."""

from __future__ import annotations

import fcntl
import itertools
import json
import math
import os
import re
import selectors
import shutil
import subprocess
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from vime_core.run.folder import RunFolder
from vime_core.run.metrics import MetricsWriter
from vime_core.run.versions import write_versions
from vime_core.types import Group, Prompt, Sample, Verdict, VersionSpan

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

STEPS = 60
STATUSES = ("correct", "wrong", "unparseable", "timeout", "error")

CONFIG: dict[str, Any] = {
    "placement": "colocated",
    "model": {"name": "qwen3", "path": "/models/Qwen3-0.6B"},
    "data": {"name": "files", "train": "/data/dapo-math-17k.parquet"},
    "algorithm": {"name": "grpo", "updates_per_rollout": 1},
    "train": {"name": "megatron", "steps": STEPS, "world_size": 1, "dtype": "bfloat16", "lr": 1e-6,
              "lr_schedule": "constant", "clip_grad": 1.0},
    "rollout": {"name": "vllm", "prompts_per_step": 4, "samples_per_prompt": 4, "temperature": 1.0, "top_p": 1.0,
                "top_k": -1, "max_prompt_tokens": 1024, "max_response_tokens": 1024, "num_engines": 1,
                "tensor_parallel_size": 1},
    "accelerator": {"name": "cpu"},
    "sync": {"name": "shm"},
    "rewards": {"dapo_math": {"name": "dapo_math", "weight": 1.0}},
    "run": {"name": "<b>run</b>", "seed": 0},
}  # fmt: skip

NASTY = (
    "plain",
    "</script><script>window.broken = 1</script>",
    '<img src="https://example.org/x.png" onerror="window.broken = 2">',
    "<!-- <script> comment",
    "null \x00 and bell \x07",
    "right to left \u202e override",
    "line \u2028 separator",
    "emoji \U0001f600, \u6f22\u5b57 and \\u003c",
    "& &amp; ' \" ` ${1 + 1} $title",
)
"""Texts that a page could take for something else."""


def step_metrics(step: int, rng: np.random.Generator) -> dict[str, float]:
    """Metrics as a run that learns has them."""
    if step == 0:
        return {"eval/gsm8k/accuracy": 0.12, "eval/heldout/accuracy": 0.05, "sync/policy_version": 0.0}
    learnt = 1 - math.exp(-step / 25)
    correct = 0.1 + 0.7 * learnt + 0.03 * rng.standard_normal()
    shares = np.array([correct, 0.6 * (1 - correct), 0.32 * (1 - correct), 0.05 * (1 - correct), 0.03 * (1 - correct)])
    times = {"rollout": 6 + rng.random(), "score": 0.2, "logprob": 1.1, "update": 3.2 + 0.3 * rng.random(),
             "sync": 0.5, "switch": 0.01, "record": 0.05}  # fmt: skip
    times |= {"eval": 4.0} if step % 10 == 0 else {}
    times |= {"save": 2.0} if step % 20 == 0 else {}
    metrics = {
        "rollout/raw_reward": 2 * correct - 1,
        "rollout/response_len_mean": 180 + 120 * learnt + 10 * rng.standard_normal(),
        "rollout/response_len_max": 420 + 80 * learnt + 30 * rng.random(),
        "rollout/truncated_ratio": 0.2 * (1 - learnt),
        "rollout/zero_std_group_ratio": 0.2 + 0.3 * learnt,
        **{f"rollout/verdict_{status}": float(share) for status, share in zip(STATUSES, shares, strict=True)},
        "train/updates": 1.0,
        "train/loss": 0.02 * rng.standard_normal() + 0.001,
        "train/pg_loss": 0.02 * rng.standard_normal(),
        "train/kl": 0.001 * step,
        "train/entropy": 0.9 - 0.4 * learnt,
        "train/clip_fraction": 0.01 * rng.random(),
        "train/grad_norm": math.nan if step == 17 else 0.8 + 0.3 * rng.random(),
        "train/lr": 1e-6,
        "train/train_rollout_logprob_abs_diff": 2e-4 * (1 + rng.random()),
        **{f"perf/{stage}_time_s": seconds for stage, seconds in times.items()},
        "perf/step_time_s": sum(times.values()) + 0.1,
        "perf/tokens_per_gpu_per_second": 900 + 60 * rng.standard_normal(),
        "sync/policy_version": float(step),
        "sync/bytes": 1.2e9,
        "rollout/dropped_acme": float(step % 3),
    }
    if step % 10 == 0:
        metrics |= {"eval/gsm8k/accuracy": 0.12 + 0.5 * learnt, "eval/heldout/accuracy": 0.05 + 0.3 * learnt}
    return metrics


def make_group(step: int, number: int, rng: np.random.Generator, *, size: int = 4, text: str = "") -> Group:
    """The samples of one prompt; each has its own verdict."""
    prompt = Prompt(
        id=f"dapo-math/{(step * 7 + number) % 97:04d}",
        messages=({"role": "user", "content": f"What is {step} + {number}? {NASTY[(step + number) % len(NASTY)]}"},),
        token_ids=(1, 2, 3),
        label=str(step + number),
        data_source="math_dapo",
    )
    return Group(f"{step}:{prompt.id}", prompt, [_sample(step, number, i, prompt, rng, text) for i in range(size)])


def _sample(step: int, number: int, index: int, prompt: Prompt, rng: np.random.Generator, text: str) -> Sample:
    length = int(rng.integers(5, 40))
    status = STATUSES[0 if rng.random() < step / STEPS else int(rng.integers(1, 5))]
    nasty = NASTY[(step + index) % len(NASTY)]
    mask = np.ones(length, np.bool_)
    mask[0] = False
    return Sample(
        prompt_id=prompt.id,
        group_id=f"{step}:{prompt.id}",
        index=index,
        prompt_ids=np.array([1, 2, 3]),
        response_ids=np.arange(length),
        loss_mask=mask,
        rollout_logprobs=-rng.random(length, np.float32),
        finish_reason="stop" if index else "length",
        policy_versions=(VersionSpan(step, 0, length),),
        response_text=f"step {step} prompt {number} sample {index}: {nasty}\n{text}\nAnswer: {step + number}",
        verdict=Verdict(1.0 if status == "correct" else -1.0, status, str(step + number), f"read {nasty}"),
    )


def advantages_of(groups: list[Group]) -> dict[tuple[str, int], Any]:
    """An advantage a token for all samples but those with index 3."""
    samples = [sample for group in groups for sample in group.samples if sample.index != 3]
    return {s.key: np.linspace(-1.0, 1.0, len(s.response_ids)) + s.index for s in samples}


def write_run(path: Path, steps: int = STEPS, groups: int = 4) -> RunFolder:
    """A run of so many steps."""
    run = RunFolder.create_at(path)
    run.write_config(CONFIG)
    write_versions(run.versions_file)
    run.log_file.write_text("2026-01-01 00:00:00,000 INFO    driver: started (vime_core.loop.train)\n")
    rng = np.random.default_rng(0)
    writer = MetricsWriter(run.metrics_file)
    for step in range(steps + 1):
        writer.write(step, step_metrics(step, rng))
        if step:
            scored = [make_group(step, number, rng) for number in range(groups)]
            run.write_rollouts(step, scored, advantages_of(scored))
    writer.close()
    return run


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """All steps done. Not to be changed."""
    return write_run(tmp_path_factory.mktemp("finished") / "2026-01-01_run")


@pytest.fixture
def started_run(tmp_path: Path) -> RunFolder:
    """No step done yet."""
    run = RunFolder.create_at(tmp_path / "run")
    run.write_config(CONFIG)
    return run


def blocks(page: str) -> dict[str, Any]:
    """The blocks of data in a page, by name."""
    found = re.findall(r'<script type="application/json" id="data-(\w+)">(.*?)</script>', page, re.DOTALL)
    return {name: json.loads(text) for name, text in found}


@pytest.fixture(scope="session")
def blocks_of() -> Any:
    """`blocks`."""
    return blocks


@pytest.fixture(scope="session")
def group_of() -> Any:
    """`make_group`."""
    return make_group


class Browser:
    """Headless Chromium, spoken to by the DevTools protocol over a pair of pipes."""

    DEADLINE_S = 120.0
    FLAGS = (
        "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
        "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
        "--disable-extensions", "--hide-scrollbars", "--remote-debugging-pipe",
    )  # fmt: skip

    def __init__(self, program: str, profile: Path) -> None:
        there, self._to = high_pipe()
        self._from, back = high_pipe()
        self._numbers = itertools.count(1)
        self._buffer = b""
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        script = f'exec "$0" "$@" 3<&{there} 4>&{back}'
        self._process = subprocess.Popen(
            ["bash", "-c", script, program, *self.FLAGS, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(there, back),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(there)
        os.close(back)
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the protocol; its result."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        if self._session is not None and not method.startswith("Target."):
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        return self._wait(lambda answer: answer.get("id") == number)["result"]

    def open(self, path: Path, width: int = 1280, height: int = 900) -> None:
        """Load a file and wait until its scripts have run."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.events.clear()
        self.call("Page.navigate", url=path.as_uri())
        self._wait(lambda event: event.get("method") == "Page.loadEventFired")
        # Drawing follows the first layout.
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def run(self, expression: str) -> Any:
        """The value of a JavaScript expression; a promise is waited for."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def _wait(self, fits: Any) -> dict[str, Any]:
        end = time.monotonic() + self.DEADLINE_S
        while True:
            message = self._read(end)
            if fits(message):
                assert "error" not in message, message["error"]
                return message
            self.events.append(message)

    def _read(self, end: float) -> dict[str, Any]:
        with selectors.DefaultSelector() as selector:
            selector.register(self._from, selectors.EVENT_READ)
            while b"\0" not in self._buffer:
                assert selector.select(end - time.monotonic()), "Chromium did not answer in time"
                part = os.read(self._from, 1 << 20)
                assert part, f"Chromium ended with status {self._process.wait(10)}"
                self._buffer += part
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def close(self) -> None:
        """End the browser."""
        try:
            self.call("Browser.close")
            self._process.wait(30)
        finally:
            self._process.kill()
            self._process.wait(30)
            os.close(self._to)
            os.close(self._from)


def high_pipe() -> list[int]:
    """A pipe away from descriptors 3 and 4, on which Chromium reads and writes."""
    ends = os.pipe()
    high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends]
    for end in ends:
        os.close(end)
    return high


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One browser for the session; without one on PATH: skip, but fail in CI."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    program = next(filter(None, map(shutil.which, names)), None)
    if program is None:
        assert os.environ.get("CI") != "true", f"no browser on PATH: install one of {', '.join(names)}"
        pytest.skip("no Chromium on PATH")
    browser = Browser(program, tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()
