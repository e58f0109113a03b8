"""Pools over the rewards of `modules/pool_rewards.py`."""

import asyncio
import time
from importlib import import_module
from pathlib import Path

import pytest

from vime_core.config.schema import RewardPoolConfig
from vime_core.rewards.pool import RewardPool, RewardSpec
from vime_core.testing.samples import make_sample
from vime_core.types import Prompt

MODULES = str(Path(__file__).parent / "modules")


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.syspath_prepend(MODULES)


@pytest.fixture
def make_pool():
    """A started pool; closed at the end of the test."""
    pools = []

    def make(*rewards, start=True, text_only=(), **limits):
        module = import_module("pool_rewards")
        specs = [
            RewardSpec(
                name,
                class_name if ":" in class_name else f"pool_rewards:{class_name}",
                module.Settings(name=name, **settings),
                text_only=name in text_only,
            )
            for name, class_name, settings in rewards or [("obey", "Obey", {})]
        ]
        pool = RewardPool(specs, config=RewardPoolConfig(**{"time_limit_s": 60.0, **limits}))
        pools.append(pool)
        if start:
            pool.start()
        return pool

    yield make
    for pool in pools:
        pool.close()


@pytest.fixture
def ask():
    """Score responses as one group, from a fresh event loop."""

    def ask(pool, *responses, group="g"):
        return asyncio.run(pool.score(samples(responses, group), prompt(group)))

    return ask


@pytest.fixture
def wait_until():
    """Poll a condition until it is true."""

    def wait_until(condition, seconds=60):
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "the condition did not come true"
            time.sleep(0.02)

    return wait_until


def samples(responses, group="g"):
    made = [make_sample(2, 3, group=group, index=index) for index in range(len(responses))]
    for sample, response in zip(made, responses, strict=True):
        sample.response_text = response
    return made


def prompt(name="g"):
    return Prompt(id=name, messages=(), token_ids=(1, 2), label="1")
