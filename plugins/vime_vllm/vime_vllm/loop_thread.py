"""An event loop in a thread of its own.

Requests then depend neither on which loop the caller runs nor on how busy that one is: a loop that scores samples for
seconds would make answers time out that came in time.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from concurrent.futures import Future

Result = TypeVar("Result")

JOIN_DEADLINE_S = 30.0


class LoopThread:
    """Runs coroutines for other threads, between `start` and `close`."""

    def __init__(self, name: str) -> None:
        """Args: the thread's name."""
        self._loop: asyncio.AbstractEventLoop
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._loop = asyncio.new_event_loop()
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, Result]) -> Future[Result]:
        """Start `work`; cancelling the future cancels it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Wait for `work`, which keeps its own deadlines."""
        return self.submit(work).result()

    async def call(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Await `work` from any loop."""
        return await asyncio.wrap_future(self.submit(work))

    def close(self) -> None:
        """Cancel what still runs and end the thread; safe to call twice and without `start`."""
        if not self._thread.is_alive():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(JOIN_DEADLINE_S)

    def _run(self) -> None:
        self._loop.run_forever()
        self._loop.run_until_complete(self._cancel_all())
        self._loop.close()

    @staticmethod
    async def _cancel_all() -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
