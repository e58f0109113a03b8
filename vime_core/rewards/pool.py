"""Scoring in killable worker processes, side by side, each verdict within a time limit."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from concurrent.futures import FIRST_EXCEPTION, wait
from typing import TYPE_CHECKING

from vime_core.errors import ConfigError, DeadlineError, RewardError
from vime_core.rewards.combine import Part, combine
from vime_core.rewards.crew import Crew
from vime_core.rewards.spec import RewardSpec
from vime_core.rewards.tasks import Job

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from vime_core.config.schema import RewardPoolConfig
    from vime_core.types import Prompt, Sample, Verdict

__all__ = ["RewardPool", "RewardSpec"]

CLOSE_DEADLINE_S = 40.0
"""Longer than a scoring process may take to end after SIGKILL."""


class RewardPool:
    """Scores samples with all chosen rewards. `start` before, `close` after, or use it as a context manager.

    Each worker is a fresh interpreter. A worker that is late is killed and replaced (`timeout`), one that dies is
    replaced (`error` with its exit status), an exception in a reward is an `error` with its line; other samples lose
    nothing. No signal handlers or timers run in a worker, and no event loop times it. Workers end with the process
    that made the pool, however that ends. A reward with `workers` of its own is asked by them alone.

    Args:
        rewards: At least one; their scores are combined as `vime_core.rewards.combine` says.
        config: Number of workers, and limits.

    Raises:
        ConfigError: when there is no reward.
    """

    def __init__(self, rewards: Sequence[RewardSpec], *, config: RewardPoolConfig) -> None:
        if not rewards:
            raise ConfigError("no reward is chosen; choose one or more with reward=[...]")
        self._rewards = tuple(rewards)
        self._crews = self._make_crews(config)
        self._lock = threading.Lock()
        self._refusal: Exception | None = RewardError("the reward pool was not started")
        self._interrupt: tuple[int, int] | None = None

    def start(self) -> None:
        """Start all workers and return when each has built its rewards.

        Raises:
            PluginError: when a reward cannot be built.
            RewardError: when a worker ends while it starts.
            DeadlineError: when a worker takes too long.
        """
        self._interrupt = os.pipe()
        started, _ = wait(
            [future for crew in self._crews for future in crew.start(self._interrupt[0])],
            return_when=FIRST_EXCEPTION,
        )
        try:
            for future in started:
                future.result()
        except BaseException:
            self.close()
            raise
        self._refusal = None

    async def score(self, samples: Sequence[Sample], prompt: Prompt) -> list[Verdict]:
        """One verdict for each sample, in order, combined from those of all rewards; see `ask`."""
        return [combine(parts) for parts in await self.ask(samples, prompt)]

    async def ask(self, samples: Sequence[Sample], prompt: Prompt) -> list[list[Part]]:
        """What the rewards say of each sample, in order; may be awaited many times at once.

        Of each group of rewards that share workers, those behind one that says `timeout` or `error` are left out.

        Raises:
            RewardError, PluginError, DeadlineError: when the pool is closed or a worker cannot be replaced.
        """
        if self._refusal is not None:
            raise self._refusal
        jobs = [Job(samples, prompt) for _ in self._crews]
        try:
            tickets = [crew.queue.enter(job) for crew, job in zip(self._crews, jobs, strict=True)]
            await asyncio.gather(*(asyncio.wrap_future(ticket) for ticket in tickets))
            results = await asyncio.gather(*(asyncio.wrap_future(job.parts) for job in jobs))
        except BaseException:
            for job in jobs:
                job.given_up = True
            raise
        return [self._in_order(parts) for parts in zip(*results, strict=True)]

    def close(self, deadline_s: float = CLOSE_DEADLINE_S) -> None:
        """End all workers, also those that are scoring; safe to call twice, and before `start`.

        Raises:
            DeadlineError: when a worker does not end in time.
        """
        self._refuse(RewardError("the reward pool is closed"))
        if self._interrupt is None:
            return
        read_end, write_end = self._interrupt
        self._interrupt = None
        os.write(write_end, b"x")  # a child that was forked keeps the pipe open, so closing alone says nothing
        os.close(write_end)
        lanes = [lane for crew in self._crews for lane in crew.lanes]
        deadline = time.monotonic() + deadline_s
        for lane in lanes:
            lane.join(max(0.0, deadline - time.monotonic()))
        stuck = sum(lane.is_alive() for lane in lanes)
        if stuck:
            raise DeadlineError(f"{stuck} of {len(lanes)} scoring processes did not end within {deadline_s:g} s")
        os.close(read_end)

    @property
    def pids(self) -> list[int]:
        """The scoring processes there are now."""
        return [lane.process.pid for crew in self._crews for lane in crew.lanes if lane.process is not None]

    @property
    def waiting(self) -> int:
        """Samples in the queue, once for each group of rewards that share workers."""
        return sum(len(crew.queue) for crew in self._crews)

    def __enter__(self) -> RewardPool:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _make_crews(self, config: RewardPoolConfig) -> list[Crew]:
        """One for the rewards that share workers, if any, and one for each other."""
        shared = [reward for reward in self._rewards if reward.config.workers is None]
        crews = []
        if shared:
            size = config.batch_size
            crews.append(
                Crew("reward", shared, workers=config.workers, batch_size=size, config=config, refuse=self._refuse)
            )
        for reward in self._rewards:
            workers = reward.config.workers
            if workers is not None:
                name = f"reward-{reward.name}"
                crews.append(Crew(name, [reward], workers=workers, batch_size=1, config=config, refuse=self._refuse))
        return crews

    def _in_order(self, parts: Sequence[list[Part]]) -> list[Part]:
        """What all crews said of one sample, in the order of the rewards."""
        if len(parts) == 1:
            return parts[0]
        by_name = {part.name: part for crew_parts in parts for part in crew_parts}
        return [by_name[reward.name] for reward in self._rewards if reward.name in by_name]

    def _refuse(self, reason: Exception) -> None:
        """Take no further tasks and give up those that wait; the first reason stays."""
        with self._lock:
            self._refusal = first = self._refusal or reason
        for crew in self._crews:
            crew.queue.refuse(first)
