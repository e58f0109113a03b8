"""The pool inside a Ray actor, whose methods run off the main thread."""

from pathlib import Path

import pytest
import ray

MODULES = str(Path(__file__).parent / "modules")


def score_in_actor(modules, responses):
    import asyncio
    import sys
    import threading

    sys.path.insert(0, modules)
    from pool_rewards import Settings

    from vime_core.config.schema import RewardPoolConfig
    from vime_core.rewards.pool import RewardPool, RewardSpec
    from vime_core.testing.samples import make_sample
    from vime_core.types import Prompt

    made = [make_sample(1, 1, index=index) for index in range(len(responses))]
    for sample, response in zip(made, responses, strict=True):
        sample.response_text = response
    spec = RewardSpec("obey", "pool_rewards:Obey", Settings())
    with RewardPool([spec], config=RewardPoolConfig(workers=2, time_limit_s=1.0)) as pool:
        verdicts = asyncio.run(pool.score(made, Prompt("p", (), (1,), "1")))
    return threading.current_thread() is threading.main_thread(), [verdict.status for verdict in verdicts]


@pytest.mark.full
def test_in_a_threaded_actor():
    ray.init(num_cpus=2, include_dashboard=False, logging_level="error", object_store_memory=100 << 20)
    try:
        actor = ray.remote(max_concurrency=2)(_Scorer).remote()
        on_main, statuses = ray.get(actor.score.remote(MODULES, ["echo", "spin_in_c", "crash", "echo"]), timeout=200)
    finally:
        ray.shutdown()
    assert not on_main
    assert statuses == ["correct", "timeout", "error", "correct"]


class _Scorer:
    def score(self, modules, responses):
        return score_in_actor(modules, responses)
