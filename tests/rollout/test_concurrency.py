import asyncio

import pytest

from vime_core.rollout.concurrency import run_all, run_in_order, run_jobs


class Jobs:
    """Jobs that end when their event is set, and remember how they ended."""

    def __init__(self, count):
        self.events = [asyncio.Event() for _ in range(count)]
        self.cancelled = []
        self.started = []

    async def job(self, index):
        self.started.append(index)
        try:
            await self.events[index].wait()
        except asyncio.CancelledError:
            self.cancelled.append(index)
            raise
        return index

    async def failing(self, index, error):
        await self.job(index)
        raise error


async def until(condition):
    """Let the loop run until it holds; the test's own time limit ends a wait that is in vain."""
    while not condition():
        await asyncio.sleep(0)


def test_run_all_keeps_the_order_of_the_jobs():
    async def main():
        jobs = Jobs(3)
        results = asyncio.ensure_future(run_all([jobs.job(i) for i in range(3)]))
        for index in (2, 0, 1):
            jobs.events[index].set()
            await asyncio.sleep(0)
        return await results

    assert asyncio.run(main()) == [0, 1, 2]


@pytest.mark.parametrize("runner", ["run_all", "run_jobs"])
def test_the_first_failure_is_raised_as_it_is_and_cancels_the_rest(runner):
    error = ValueError("first cause")

    async def main():
        jobs = Jobs(3)
        jobs.events[1].set()
        coroutines = [jobs.job(0), jobs.failing(1, error), jobs.job(2)]
        try:
            if runner == "run_all":
                await run_all(coroutines)
            else:
                remaining = iter(coroutines)
                await run_jobs(lambda running: next(remaining, None), lambda result: None)
        except ValueError as caught:
            return caught, jobs.cancelled
        return None

    assert asyncio.run(main()) == (error, [0, 2])


def test_failures_that_come_together_are_told_in_the_order_of_their_start():
    async def main():
        jobs = Jobs(2)
        for event in jobs.events:
            event.set()
        remaining = iter([jobs.failing(0, ValueError("zero")), jobs.failing(1, ValueError("one"))])
        await run_jobs(lambda running: next(remaining, None), lambda result: None)

    with pytest.raises(ValueError, match="zero"):
        asyncio.run(main())


def test_cancelling_from_outside_cancels_every_job():
    async def main():
        jobs = Jobs(2)
        remaining = iter([jobs.job(0), jobs.job(1)])
        whole = asyncio.ensure_future(run_jobs(lambda running: next(remaining, None), lambda result: None))
        await until(lambda: jobs.started == [0, 1])
        whole.cancel()
        with pytest.raises(asyncio.CancelledError):
            await whole
        return jobs.cancelled

    assert asyncio.run(main()) == [0, 1]


def test_jobs_are_asked_for_when_others_have_finished():
    async def main():
        jobs = Jobs(4)
        remaining, finished = iter(range(4)), []

        def next_job(running):
            index = next(remaining, None) if running < 2 else None
            return None if index is None else jobs.job(index)

        whole = asyncio.ensure_future(run_jobs(next_job, finished.append))
        await until(lambda: jobs.started == [0, 1])
        jobs.events[1].set()
        await until(lambda: jobs.started == [0, 1, 2])
        for event in jobs.events:
            event.set()
        await whole
        return jobs.started, sorted(finished)

    assert asyncio.run(main()) == ([0, 1, 2, 3], [0, 1, 2, 3])


def test_results_in_order_are_told_as_soon_as_those_before_are_there():
    async def scenario():
        jobs, told = Jobs(4), []
        running = asyncio.create_task(run_in_order(range(4), jobs.job, at_a_time=2, finished=told.append))
        await until(lambda: jobs.started == [0, 1])
        jobs.events[1].set()
        await until(lambda: jobs.started == [0, 1, 2])
        assert told == []
        jobs.events[0].set()
        await until(lambda: told == [0, 1])
        for event in jobs.events:
            event.set()
        assert await running == told == [0, 1, 2, 3]

    asyncio.run(scenario())


def test_the_first_failure_in_order_ends_all():
    async def scenario():
        jobs, error = Jobs(3), ValueError("second")
        work = lambda index: jobs.failing(index, error) if index == 1 else jobs.job(index)  # noqa: E731
        running = asyncio.create_task(run_in_order(range(3), work, at_a_time=3))
        await until(lambda: len(jobs.started) == 3)
        jobs.events[1].set()
        with pytest.raises(ValueError, match="second"):
            await running
        assert jobs.cancelled == [0, 2]

    asyncio.run(scenario())
