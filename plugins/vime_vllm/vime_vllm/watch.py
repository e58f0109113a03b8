"""Waiting for answers that end at once when a part dies."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from vime_core.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Coroutine

Result = TypeVar("Result")


class DeathWatch:
    """Turns the first death into the error of every wait. Made and used inside one event loop."""

    def __init__(self) -> None:
        """Nothing has died."""
        self._death: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def report(self, what: str) -> None:
        """A part has died; only the first report counts, others follow from it."""
        if not self._death.done():
            self._death.set_result(what)

    def check(self) -> None:
        """Return when nothing has died.

        Raises:
            EngineError: with the first report.
        """
        if self._death.done():
            raise EngineError(self._death.result())

    async def wait(self, patience_s: float) -> None:
        """Like `check`, `patience_s` seconds from now at the latest."""
        await asyncio.wait({self._death}, timeout=patience_s)
        self.check()

    async def guard(self, work: Coroutine[Any, Any, Result]) -> Result:
        """The result of `work`; when something dies before it is there, `work` is cancelled and the death raised."""
        task = asyncio.ensure_future(work)
        waits: set[asyncio.Future[Any]] = {task, self._death}
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise EngineError(self._death.result())
        finally:
            task.cancel()
