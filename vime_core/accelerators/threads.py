"""CPU threads: how many there are, and who gets how many."""

from __future__ import annotations

import os
from dataclasses import dataclass

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def usable_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def thread_environment(threads: int) -> dict[str, str]:
    """The variables that give a child process so many threads."""
    return dict.fromkeys(THREAD_VARIABLES, str(threads))


@dataclass(frozen=True, slots=True)
class ThreadPlan:
    """Threads of each process of a kind."""

    trainer: int
    """of each training rank"""
    engine: int
    """of each rollout engine"""


def plan_threads(
    cores: int, *, ranks: int, engines: int, taking_turns: bool, trainer: int | None = None, engine: int | None = None
) -> ThreadPlan:
    """Share the cores of one node.

    Args:
        cores: cores that the run may use.
        ranks: training ranks on the node.
        engines: rollout engines on the node.
        taking_turns: trainer and engines never compute at the same time (colocated): each side gets all cores.
        trainer: overrides the plan for a training rank.
        engine: overrides the plan for an engine.
    """
    if taking_turns:
        trainer_share, engine_share = cores, cores
    else:
        trainer_share = max(1, cores // 2)
        engine_share = max(1, cores - trainer_share)
    return ThreadPlan(
        trainer=trainer or max(1, trainer_share // max(1, ranks)),
        engine=engine or max(1, engine_share // max(1, engines)),
    )
