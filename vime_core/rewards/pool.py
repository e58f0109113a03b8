"""Scoring in killable worker processes, side by side, each verdict within a time limit."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import threading
import time
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vime_core.errors import ConfigError, DeadlineError, RewardError
from vime_core.rewards.combine import Part, combine
from vime_core.rewards.process import Interrupted, ScoringProcess
from vime_core.rewards.spec import RewardSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from vime_core.config.schema import RewardPoolConfig
    from vime_core.types import Prompt, Sample, Verdict

__all__ = ["RewardPool", "RewardSpec"]

CLOSE_DEADLINE_S = 40.0
"""Longer than a scoring process may take to end after SIGKILL."""


@dataclass(frozen=True, slots=True)
class _Task:
    sample: Sample
    prompt: Prompt
    future: Future[list[Part]] = field(default_factory=Future)


class RewardPool:
    """Scores samples with all chosen rewards. `start` before, `close` after, or use it as a context manager.

    Each worker is a fresh interpreter that holds one task at a time, so a verdict cannot reach another sample than its
    own, and what waits is a reference, not a copy. A worker that is late is killed and replaced (`timeout`), one that
    dies is replaced (`error` with its exit status), an exception in a reward is an `error` with its line. No signal
    handlers or timers run in a worker, and no event loop times it. Workers end with the process that made the pool,
    however that ends.

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
        self._config = config
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._lanes: list[_Lane] = []
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
        self._lanes = [
            _Lane(f"reward-{index}", self._tasks, self._new_process, self._refuse)
            for index in range(self._config.workers)
        ]
        for lane in self._lanes:
            lane.start()
        started, _ = wait([lane.started for lane in self._lanes], return_when=FIRST_EXCEPTION)
        try:
            for future in started:
                future.result()
        except BaseException:
            self.close()
            raise
        self._refusal = None

    async def score(self, samples: Sequence[Sample], prompt: Prompt) -> list[Verdict]:
        """One verdict for each sample, in order; may be awaited many times at once.

        With several rewards each one's own score is kept in `sample.metadata["rewards"]`.

        Raises:
            RewardError, PluginError, DeadlineError: when the pool is closed or a worker cannot be replaced.
        """
        tasks = [_Task(sample, prompt) for sample in samples]
        with self._lock:
            if self._refusal is not None:
                raise self._refusal
            for task in tasks:
                self._tasks.put(task)
        try:
            results = await asyncio.gather(*(asyncio.wrap_future(task.future) for task in tasks))
        except BaseException:
            for task in tasks:
                task.future.cancel()
            raise
        if len(self._rewards) > 1:
            for sample, parts in zip(samples, results, strict=True):
                sample.metadata["rewards"] = {part.name: part.verdict.score for part in parts}
        return [combine(parts) for parts in results]

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
        for _ in self._lanes:
            self._tasks.put(None)
        deadline = time.monotonic() + deadline_s
        for lane in self._lanes:
            lane.join(max(0.0, deadline - time.monotonic()))
        stuck = sum(lane.is_alive() for lane in self._lanes)
        if stuck:
            raise DeadlineError(f"{stuck} of {len(self._lanes)} scoring processes did not end within {deadline_s:g} s")
        os.close(read_end)

    @property
    def pids(self) -> list[int]:
        """The scoring processes there are now."""
        return [lane.process.pid for lane in self._lanes if lane.process is not None]

    def __enter__(self) -> RewardPool:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _new_process(self) -> ScoringProcess:
        if self._interrupt is None:
            raise Interrupted
        return ScoringProcess(self._rewards, self._config, self._interrupt[0])

    def _refuse(self, reason: Exception) -> None:
        """Take no further tasks and give up those that wait; the first reason stays."""
        with self._lock:
            self._refusal = self._refusal or reason
            waiting = _drain(self._tasks)
            for _ in range(waiting.count(None)):
                self._tasks.put(None)
        for task in waiting:
            if task is not None and task.future.set_running_or_notify_cancel():
                task.future.set_exception(reason)


def _drain(tasks: queue.SimpleQueue[_Task | None]) -> list[_Task | None]:
    drained = []
    with contextlib.suppress(queue.Empty):
        while True:
            drained.append(tasks.get_nowait())
    return drained


class _Lane(threading.Thread):
    """One worker after another: takes tasks, one at a time, and replaces a worker that ended."""

    def __init__(
        self,
        name: str,
        tasks: queue.SimpleQueue[_Task | None],
        new_process: Callable[[], ScoringProcess],
        refuse: Callable[[Exception], None],
    ) -> None:
        super().__init__(name=name, daemon=True)
        self.started: Future[None] = Future()
        self.process: ScoringProcess | None = None
        self._tasks = tasks
        self._new_process = new_process
        self._refuse = refuse
        self._task: _Task | None = None

    def run(self) -> None:
        """Until there is None instead of a task, the pool is closed or a worker cannot be replaced."""
        try:
            self._replace()
            self.started.set_result(None)
            while (task := self._tasks.get()) is not None:
                if task.future.set_running_or_notify_cancel():
                    self._task = task
                    self._answer(task)
                    self._task = None
        except Interrupted:
            self._give_up(RewardError("the reward pool was closed while it was scoring"))
        except Exception as error:
            self._give_up(error)
        finally:
            if self.process is not None:
                self.process.kill()

    def _answer(self, task: _Task) -> None:
        process = self.process
        if process is None or process.has_ended():
            process = self._replace()
        task.future.set_result(process.score(task.sample, task.prompt))
        if process.has_ended():
            self._replace()

    def _replace(self) -> ScoringProcess:
        if self.process is not None:
            self.process.kill()
        self.process = self._new_process()
        self.process.build()
        return self.process

    def _give_up(self, error: Exception) -> None:
        if not self.started.done():
            self.started.set_exception(error)
        if self._task is not None and not self._task.future.done():
            self._task.future.set_exception(error)
        self._refuse(error)
