"""Coroutines side by side, of which the first failure ends all."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Iterable

T = TypeVar("T")
Item = TypeVar("Item")


async def run_jobs(next_job: Callable[[int], Coroutine[Any, Any, T] | None], finished: Callable[[T], None]) -> None:
    """Run jobs until `next_job` has none and none is running. The deadlines are those of the jobs.

    Args:
        next_job: called with the number of running jobs, at the start and whenever some have finished, until it
            returns None; what it returns is started.
        finished: told each result as it comes; results that come together are told in the order of their start.

    Raises:
        BaseException: the first that a job raises, as it is, after all other jobs were cancelled.
    """
    running: dict[asyncio.Task[T], None] = {}
    try:
        while True:
            while (job := next_job(len(running))) is not None:
                running[asyncio.create_task(job)] = None
            if not running:
                return
            done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in [task for task in running if task in done]:
                finished(task.result())
                del running[task]
    finally:
        await _cancel(running)


async def run_all(jobs: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """All results, in the order of `jobs`.

    Raises:
        BaseException: the first that a job raises, as it is, after all other jobs were cancelled.
    """
    tasks = [asyncio.create_task(job) for job in jobs]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await _cancel(tasks)


async def run_in_order(
    items: Iterable[Item],
    work: Callable[[Item], Coroutine[Any, Any, T]],
    *,
    at_a_time: int,
    finished: Callable[[T], None] | None = None,
) -> list[T]:
    """What `work` makes of each item, in the order of the items.

    Args:
        items: taken in this order.
        work: on one item.
        at_a_time: most items under way at one time.
        finished: told each result once it and all before it are there.

    Raises:
        BaseException: the first that `work` raises, after all others were cancelled.
    """
    waiting = iter(enumerate(items))
    done: dict[int, T] = {}
    results: list[T] = []

    async def numbered(position: int, item: Item) -> tuple[int, T]:
        return position, await work(item)

    def next_job(running: int) -> Coroutine[Any, Any, tuple[int, T]] | None:
        following = next(waiting, None) if running < at_a_time else None
        return None if following is None else numbered(*following)

    def keep(result: tuple[int, T]) -> None:
        done.update([result])
        while len(results) in done:
            results.append(done.pop(len(results)))
            if finished is not None:
                finished(results[-1])

    await run_jobs(next_job, keep)
    return results


async def _cancel(tasks: Collection[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
