"""What all engines answer to one message, and which of them is to blame when they do not."""

from __future__ import annotations

from concurrent.futures import FIRST_EXCEPTION, Future, wait
from typing import TYPE_CHECKING, Any

from vime_core.errors import SyncError
from vime_vllm.http import CallTimeoutError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vime_vllm.sync.clock import Clock

BROKE_OFF = "the broadcast from the trainer broke off"
"""What a worker says that waited in vain: for the trainer, or for a worker that should have passed the bytes on."""
SLACK_S = 1.0
"""A call keeps its deadline itself; its answer is waited for a little longer."""


class Answers:
    """The answers to come, of each engine.

    Args:
        calls: engine -> its answer; fails with a `SyncError` that names it.
    """

    def __init__(self, calls: Mapping[str, Future[Any]]) -> None:
        self._calls = dict(calls)

    def settled(self, within_s: float) -> bool:
        """Whether an engine fails, or all have answered, within so many seconds."""
        done, pending = wait(self._calls.values(), within_s, return_when=FIRST_EXCEPTION)
        return not pending or any(call.exception() is not None for call in done)

    def check(self) -> None:
        """Return when no engine has failed by its own fault.

        Raises:
            SyncError: names the engine.
        """
        for fault in self._faults():
            if is_own_fault(fault):
                raise fault

    def wait(self, clock: Clock) -> None:
        """Return when every engine agreed.

        A worker that hangs makes others break off, which say so first: then all that remain are waited for.

        Raises:
            SyncError: names the engine to blame.
        """
        pending = set(self._calls.values())
        while pending:
            done, pending = wait(pending, clock.left() + SLACK_S, return_when=FIRST_EXCEPTION)
            faults = self._faults()
            if faults and (not pending or is_own_fault(faults[0])):
                raise faults[0]
            if not done:
                silent = ", ".join(name for name, call in self._calls.items() if call in pending)
                raise SyncError(f"weight push: {silent} did not answer within {clock.limit_s:g} s")

    def _faults(self) -> list[SyncError]:
        """The most guilty first."""
        errors = (call.exception() for call in self._calls.values() if call.done())
        return sorted((error for error in errors if isinstance(error, SyncError)), key=_guilt)


_GUILTY, _SILENT, _VICTIM = range(3)


def is_own_fault(error: SyncError) -> bool:
    """Whether the engine that it names told what went wrong; else it was silent, or waited in vain itself."""
    return _guilt(error) == _GUILTY


def _guilt(error: SyncError) -> int:
    if isinstance(error.__cause__, CallTimeoutError):
        return _SILENT
    return _VICTIM if BROKE_OFF in str(error) else _GUILTY
