"""Work that waits for a scoring process."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from vime_core.rewards.combine import Part
    from vime_core.types import Prompt, Sample

_NOTHING: list[Part] = []


class Job:
    """The samples that one caller wants scored; `parts` resolves when all are, in their order."""

    def __init__(self, samples: Sequence[Sample], prompt: Prompt) -> None:
        self.samples = samples
        self.prompt = prompt
        self.parts: Future[list[list[Part]]] = Future()
        self.tasks = [Task(self, index) for index in range(len(samples))]
        self._settled: list[list[Part]] = [_NOTHING] * len(samples)
        self._left = len(samples)
        self._lock = threading.Lock()
        self.parts.set_running_or_notify_cancel()
        self.given_up = False
        if not samples:
            self.parts.set_result([])

    def settle(self, said: Iterable[tuple[Task, list[Part]]]) -> None:
        """Note what the rewards said of some of its tasks; each is settled once."""
        with self._lock:
            for task, parts in said:
                self._settled[task.index] = parts
                self._left -= 1
            done = self._left == 0 and not self.parts.done()
        if done:
            self.parts.set_result(self._settled)

    def fail(self, error: Exception) -> None:
        """Tell the caller that there will be no verdicts; the first reason stays."""
        with self._lock:
            failing = not self.parts.done() and not self.given_up
            self.given_up = True
        if failing:
            self.parts.set_exception(error)


class Task:
    """One sample of a job."""

    __slots__ = ("alone", "index", "job")

    def __init__(self, job: Job, index: int) -> None:
        self.job = job
        self.index = index
        self.alone = False
        """Whether it must be sent without others, because a process ended over a batch that held it."""

    @property
    def sample(self) -> Sample:
        """What is to be scored."""
        return self.job.samples[self.index]

    @property
    def prompt(self) -> Prompt:
        """The task that the sample answers."""
        return self.job.prompt

    def settle(self, parts: list[Part]) -> None:
        """Note what the rewards said."""
        self.job.settle([(self, parts)])


def settle(said: Iterable[tuple[Task, list[Part]]]) -> None:
    """Note what the rewards said of tasks of several jobs."""
    for job, its in groupby(said, key=_job):
        job.settle(its)


def _job(said: tuple[Task, list[Part]]) -> Job:
    return said[0].job


class TaskQueue:
    """First in, first out, from event loops to threads, with a bound on how many tasks wait.

    Args:
        capacity: Tasks that may wait; one job that is larger is let in when nothing else waits.
        takers: Threads that take; none is given more than its share while there are several.
    """

    def __init__(self, capacity: int, takers: int) -> None:
        self._capacity = capacity
        self._takers = takers
        self._waiting: deque[Task] = deque()
        self._outside: deque[tuple[Job, Future[None]]] = deque()
        self._changed = threading.Condition()
        self._refusal: Exception | None = None

    def __len__(self) -> int:
        """Tasks that wait; those of jobs that are not let in yet do not count."""
        return len(self._waiting)

    def enter(self, job: Job) -> Future[None]:
        """Ask to let a job in; resolves once its tasks wait here.

        Raises:
            Exception: the one given to `refuse`.
        """
        ticket: Future[None] = Future()
        with self._changed:
            if self._refusal is not None:
                raise self._refusal
            self._outside.append((job, ticket))
            entered = self._let_in()
        _tell(entered)
        return ticket

    def take(self, most: int, *, block: bool) -> list[Task] | None:
        """The next tasks, at most `most` and a share that leaves enough for all; None after `refuse`.

        Args:
            most: Tasks to take.
            block: Wait until there are some; else take only what is left when all takers have as many as they want.
        """
        with self._changed:
            while block and not self._waiting and self._refusal is None:
                self._changed.wait()
            if self._refusal is not None:
                return None
            share = self._share(most, ahead=not block)
            tasks: list[Task] = []
            while self._waiting and len(tasks) < min(most, share):
                if self._waiting[0].alone and tasks:
                    break
                task = self._waiting.popleft()
                if not task.job.given_up:
                    tasks.append(task)
                if task.alone:
                    break
            entered = self._let_in()
        _tell(entered)
        return tasks

    def put_back(self, tasks: Sequence[Task]) -> None:
        """Return tasks that no process has begun, to the front."""
        with self._changed:
            refusal = self._refusal
            if refusal is None:
                self._waiting.extendleft(reversed(tasks))
                self._changed.notify(len(tasks))
        if refusal is not None:
            for task in tasks:
                task.job.fail(refusal)

    def refuse(self, reason: Exception) -> None:
        """Take nothing more in, fail all that waits and wake all takers; the first reason stays."""
        with self._changed:
            self._refusal = self._refusal or reason
            jobs = [task.job for task in self._waiting]
            outside = list(self._outside)
            self._waiting.clear()
            self._outside.clear()
            self._changed.notify_all()
        for job in [*jobs, *(job for job, _ in outside)]:
            job.fail(reason)
        _tell(ticket for _, ticket in outside)

    def _share(self, most: int, *, ahead: bool) -> int:
        waiting = len(self._waiting)
        if ahead:
            return most if waiting >= most * self._takers else 0
        return waiting if self._takers == 1 else -(-waiting // (2 * self._takers))

    def _let_in(self) -> list[Future[None]]:
        entered = []
        while self._outside:
            job, ticket = self._outside[0]
            if self._waiting and len(self._waiting) + len(job.tasks) > self._capacity:
                break
            self._outside.popleft()
            if not job.given_up:
                self._waiting.extend(job.tasks)
                self._changed.notify(len(job.tasks))
            entered.append(ticket)
        return entered


def _tell(tickets: Iterable[Future[None]]) -> None:
    """Outside the lock: a callback may come back to the queue. A caller that was cancelled no longer waits."""
    for ticket in tickets:
        if ticket.set_running_or_notify_cancel():
            ticket.set_result(None)
