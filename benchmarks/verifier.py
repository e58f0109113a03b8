"""Verdicts a second per core: the fast path, the same through the pool, and math-verify, on the same rows.

    python benchmarks/verifier.py [--seconds 3] [--json FILE]

All rates are per second of CPU time, so that other work on the machine changes little; the pool's counts the CPU time
of the scoring process and, separately, with that of the owner, whose heap is frozen as in a run. Rows are the graded
solutions of the audit corpus. A group is 64 responses to one prompt, as the pool gets them in a run. Exit status 1 when
a bound does not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from math_verify import parse
from math_verify import verify as agree

import vime_math_verifier
from vime_core.config.schema import RewardPoolConfig
from vime_core.loop.heap import heap_left_alone
from vime_core.rewards.audit import AuditRow, read_audit
from vime_core.rewards.pool import RewardPool, RewardSpec
from vime_core.types import Prompt, Sample, VersionSpan
from vime_math_verifier.config import DapoMathConfig
from vime_math_verifier.reward import DapoMath

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

BATCH_SIZE = 64
RESPONSE_TOKENS = 128
MIN_RATE = 20_000
MIN_SPEED_UP = 50
MAX_POOL_OVERHEAD = 0.30

Group: TypeAlias = "tuple[list[Sample], Prompt]"


def main() -> int:
    """Measure, print, compare with the bounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="CPU seconds for each measurement")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers here too")
    options = parser.parse_args()
    corpus = Path(vime_math_verifier.__file__).parent / "corpus" / "graded.jsonl"
    rows = read_audit(corpus)
    groups = make_groups(rows)
    direct = direct_rate(DapoMath(DapoMathConfig()).score, groups, options.seconds)
    in_process, with_owner = pool_rates(groups, options.seconds)
    library = library_rate(rows, options.seconds)
    numbers = {
        "direct_per_s": direct,
        "pool_per_s": in_process,
        "pool_with_owner_per_s": with_owner,
        "math_verify_per_s": library,
        "speed_up": direct / library,
        "pool_overhead": direct / in_process - 1,
        "pool_overhead_with_owner": direct / with_owner - 1,
    }
    for name, value in numbers.items():
        print(f"{name:26s} {value:12,.2f}")
    if options.json:
        options.json.write_text(json.dumps(numbers, indent=2) + "\n", encoding="utf-8")
    held = {
        f"fast path at least {MIN_RATE:,} verdicts/s/core": direct >= MIN_RATE,
        f"at least {MIN_SPEED_UP} x math-verify": direct >= MIN_SPEED_UP * library,
        f"pool adds less than {MAX_POOL_OVERHEAD:.0%}": numbers["pool_overhead"] < MAX_POOL_OVERHEAD,
    }
    for bound, holds in held.items():
        print(f"{'holds' if holds else 'MISSED':7s} {bound}")
    return 0 if all(held.values()) else 1


def make_groups(rows: Sequence[AuditRow]) -> list[Group]:
    """Groups of `BATCH_SIZE` responses under the ground truth of their first row."""
    groups = []
    for start in range(0, len(rows) - BATCH_SIZE, BATCH_SIZE):
        chunk = rows[start : start + BATCH_SIZE]
        prompt = Prompt(id=chunk[0].id, messages=(), token_ids=tuple(range(64)), label=chunk[0].ground_truth)
        groups.append(([_sample(row, index) for index, row in enumerate(chunk)], prompt))
    return groups


def direct_rate(score: Callable[[Sample, Prompt], object], groups: Sequence[Group], seconds: float) -> float:
    """Calls a CPU second in this process."""
    begin = time.process_time()
    calls = 0
    while True:
        for samples, prompt in groups:
            for sample in samples:
                score(sample, prompt)
            calls += len(samples)
            used = time.process_time() - begin
            if used > seconds:
                return calls / used


def library_rate(rows: Sequence[AuditRow], seconds: float) -> float:
    """Verdicts of math-verify a CPU second, called as its documentation does."""
    begin = time.process_time()
    for calls, row in enumerate(itertools.cycle(rows), 1):
        agree(parse(row.ground_truth), parse(row.response))
        used = time.process_time() - begin
        if used > seconds:
            return calls / used
    raise ValueError("there are no rows")


def pool_rates(groups: Sequence[Group], seconds: float) -> tuple[float, float]:
    """Verdicts a CPU second of the scoring process, and of it together with its owner."""
    spec = RewardSpec("dapo_math", "vime_math_verifier.reward:DapoMath", DapoMathConfig(), text_only=True)
    config = RewardPoolConfig(workers=1, batch_size=BATCH_SIZE)
    with RewardPool([spec], config=config) as pool, heap_left_alone():
        asyncio.run(_score(pool, groups))
        [pid] = pool.pids
        process, owner = _cpu_seconds(pid), time.process_time()
        calls = 0
        while _cpu_seconds(pid) - process < seconds:
            calls += asyncio.run(_score(pool, groups))
        in_process = _cpu_seconds(pid) - process
        return calls / in_process, calls / (in_process + time.process_time() - owner)


async def _score(pool: RewardPool, groups: Sequence[Group]) -> int:
    verdicts = await asyncio.gather(*(pool.score(samples, prompt) for samples, prompt in groups))
    return sum(map(len, verdicts))


def _cpu_seconds(pid: int) -> float:
    """First field of schedstat: nanoseconds on a core."""
    return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[0]) / 1e9


def _sample(row: AuditRow, index: int) -> Sample:
    return Sample(
        prompt_id=row.id,
        group_id=row.id,
        index=index,
        prompt_ids=np.arange(64),
        response_ids=np.arange(RESPONSE_TOKENS),
        loss_mask=np.ones(RESPONSE_TOKENS, np.bool_),
        rollout_logprobs=np.zeros(RESPONSE_TOKENS, np.float32),
        finish_reason="stop",
        policy_versions=(VersionSpan(0, 0, RESPONSE_TOKENS),),
        response_text=row.response,
    )


if __name__ == "__main__":
    sys.exit(main())
