"""Many right answers with some that never end: what the reward pool makes of them, how fast, in how much memory.

    python benchmarks/reward_pool.py [--normal 20000] [--hostile 100] [--workers 2] [--limit 0.3] [--json FILE]

200 samples are in flight. A hostile one spins for ever and must be killed at its time limit; each kill costs the start
of a new process. The bound on the time is 1.3 x (hostile x (limit + start) / workers + the normal ones' own time), all
measured in this run. Exit status 1 when a bound does not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from hostile_reward import HOSTILE, SpinConfig

from vime_core.config.schema import RewardPoolConfig
from vime_core.rewards.pool import RewardPool, RewardSpec
from vime_core.types import Prompt, Sample, Verdict

IN_FLIGHT = 200
MAX_KILL_S = 1.0
MAX_SLOWDOWN = 1.3
MAX_GROWTH_MIB = 64


@dataclass(slots=True)
class Outcome:
    """What came of some tasks."""

    verdicts: list[Verdict]
    settled_at: list[float]
    """`time.monotonic` of each verdict."""
    seconds: float


def main() -> int:
    """Measure, print, compare with the bounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--normal", type=int, default=20_000, help="right answers")
    parser.add_argument("--hostile", type=int, default=100, help="answers that never end")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--limit", type=float, default=0.3, metavar="SECONDS", help="time limit of a verdict")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers here too")
    options = parser.parse_args()
    config = RewardPoolConfig(workers=options.workers, time_limit_s=options.limit)
    with tempfile.NamedTemporaryFile() as starts:
        spec = RewardSpec("spin", "hostile_reward:Spin", SpinConfig(file=starts.name))
        begin = time.monotonic()
        with RewardPool([spec], config=config):
            start_s = time.monotonic() - begin
        responses = mix(options.normal, options.hostile)
        with RewardPool([spec], config=config) as pool:
            alone = asyncio.run(score_all(pool, [text for text in responses if text != HOSTILE]))
            before = peak_mib(resource.RUSAGE_SELF)
            mixed = asyncio.run(score_all(pool, responses))
            growth = peak_mib(resource.RUSAGE_SELF) - before
        started = dict(line.split() for line in Path(starts.name).read_text(encoding="ascii").splitlines())
    is_hostile = [text == HOSTILE for text in responses]
    kills = [mixed.settled_at[place] - float(started[str(place)]) for place, bad in enumerate(is_hostile) if bad]
    bound = MAX_SLOWDOWN * (options.hostile * (options.limit + start_s) / options.workers + alone.seconds)
    statuses = [verdict.status for verdict in mixed.verdicts]
    numbers = {
        "wrongly_judged": sum(
            status != ("timeout" if bad else "correct") for status, bad in zip(statuses, is_hostile, strict=True)
        ),
        "start_s": start_s,
        "normal_alone_s": alone.seconds,
        "mixed_s": mixed.seconds,
        "mixed_bound_s": bound,
        "longest_kill_s": max(kills, default=0.0),
        "owner_growth_mib": growth,
        "largest_worker_mib": peak_mib(resource.RUSAGE_CHILDREN),
    }
    for name, value in numbers.items():
        print(f"{name:20s} {value:12,.2f}")
    if options.json:
        options.json.write_text(json.dumps(numbers, indent=2) + "\n", encoding="utf-8")
    held = {
        "every right answer correct, every hostile one timeout": not numbers["wrongly_judged"],
        f"killed within {MAX_KILL_S:g} s of its start": numbers["longest_kill_s"] <= MAX_KILL_S,
        f"total time within {MAX_SLOWDOWN} x its parts": mixed.seconds <= bound,
        f"the owner grows by less than {MAX_GROWTH_MIB} MiB": growth < MAX_GROWTH_MIB,
    }
    for name, holds in held.items():
        print(f"{'holds' if holds else 'MISSED':7s} {name}")
    return 0 if all(held.values()) else 1


def mix(normal: int, hostile: int) -> list[str]:
    """Responses, the hostile ones spread evenly."""
    total = normal + hostile
    places = {int((index + 0.5) * total / hostile) for index in range(hostile)}
    return [HOSTILE if place in places else f"{place} it is.\nAnswer: {place}" for place in range(total)]


async def score_all(pool: RewardPool, responses: list[str]) -> Outcome:
    """Each response as a group of its own, `IN_FLIGHT` at once; the right answer is the one it gives."""
    room = asyncio.Semaphore(IN_FLIGHT)
    settled_at = [0.0] * len(responses)

    async def one(place: int) -> Verdict:
        async with room:
            [verdict] = await pool.score(*_group(place, responses[place]))
        settled_at[place] = time.monotonic()
        return verdict

    begin = time.monotonic()
    verdicts = await asyncio.gather(*(one(place) for place in range(len(responses))))
    return Outcome(verdicts, settled_at, time.monotonic() - begin)


def peak_mib(who: int) -> float:
    """Largest resident size so far, of this process or of one that it has waited for."""
    return resource.getrusage(who).ru_maxrss / 1024


def _group(place: int, response: str) -> tuple[list[Sample], Prompt]:
    label = response.rpartition(" ")[2]
    nothing = np.zeros(0, np.int64)
    sample = Sample(
        prompt_id=str(place),
        group_id=str(place),
        index=0,
        prompt_ids=nothing,
        response_ids=nothing,
        loss_mask=np.zeros(0, np.bool_),
        rollout_logprobs=np.zeros(0, np.float32),
        finish_reason="stop",
        policy_versions=(),
        response_text=response,
    )
    return [sample], Prompt(id=str(place), messages=(), token_ids=(), label=label)


if __name__ == "__main__":
    sys.exit(main())
