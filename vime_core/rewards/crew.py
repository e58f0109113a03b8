"""Scoring processes that share rewards and a queue."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING

from vime_core.errors import RewardError
from vime_core.rewards.process import Interrupted, ScoringProcess
from vime_core.rewards.tasks import TaskQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from vime_core.config.schema import RewardPoolConfig
    from vime_core.rewards.spec import RewardSpec
    from vime_core.rewards.tasks import Task

log = logging.getLogger(__name__)


class Crew:
    """Processes that all run the same rewards.

    Args:
        name: Of the threads.
        specs: The rewards, in order.
        workers: How many processes.
        batch_size: Most tasks that a process is sent at once.
        config: Limits, and the size of the queue.
        refuse: Called with the reason when a process cannot be replaced.
    """

    def __init__(
        self,
        name: str,
        specs: Sequence[RewardSpec],
        *,
        workers: int,
        batch_size: int,
        config: RewardPoolConfig,
        refuse: Callable[[Exception], None],
    ) -> None:
        self.specs = tuple(specs)
        self.workers = workers
        self.batch_size = batch_size
        self.config = config
        self.refuse = refuse
        self.queue = TaskQueue(config.queue_size, workers)
        self.interrupt = -1
        self.lanes = [Lane(f"{name}-{index}", self) for index in range(workers)]

    def start(self, interrupt: int) -> list[Future[None]]:
        """Start all processes; each future resolves when one has built its rewards.

        Args:
            interrupt: A descriptor that becomes readable when the pool is being closed.
        """
        self.interrupt = interrupt
        for lane in self.lanes:
            lane.start()
        return [lane.started for lane in self.lanes]


class Lane(threading.Thread):
    """One process after another: gives it tasks, and replaces it when it has ended."""

    def __init__(self, name: str, crew: Crew) -> None:
        super().__init__(name=name, daemon=True)
        self.started: Future[None] = Future()
        self.process: ScoringProcess | None = None
        self._crew = crew
        self._held: list[Task] = []

    def run(self) -> None:
        """Until the queue refuses, the pool is closed or a process cannot be replaced."""
        try:
            self._replace()
            self.started.set_result(None)
            while (tasks := self._crew.queue.take(self._crew.batch_size, block=True)) is not None:
                self._work_through(tasks)
        except Interrupted:
            self._give_up(RewardError("the reward pool was closed while it was scoring"))
        except Exception as error:
            self._give_up(error)
        finally:
            if self.process is not None:
                self.process.kill()

    def _work_through(self, tasks: list[Task]) -> None:
        self._held = tasks
        process = self.process
        if process is None or process.has_ended():
            log.warning("a scoring process has ended while it had nothing to do, and is replaced")
            process = self._replace()
        process.send(tasks)
        while process.pending:
            self._send_ahead(process)
            left = process.receive()
            if process.has_ended():
                self._held = left
                self._replace()
                self._crew.queue.put_back(left)
        self._held = []

    def _send_ahead(self, process: ScoringProcess) -> None:
        """Keep the process from waiting for its next batch, when there is enough for all."""
        if process.pending > self._crew.batch_size or self._crew.batch_size == 1:
            return
        tasks = self._crew.queue.take(self._crew.batch_size, block=False)
        if tasks:
            self._held = [*self._held, *tasks]
            process.send(tasks)

    def _replace(self) -> ScoringProcess:
        if self.process is not None:
            self.process.kill()
        crew = self._crew
        self.process = ScoringProcess(crew.specs, crew.config, crew.interrupt)
        self.process.build()
        return self.process

    def _give_up(self, error: Exception) -> None:
        if not self.started.done():
            self.started.set_exception(error)
        for task in self._held:
            task.job.fail(error)
        self._crew.refuse(error)
