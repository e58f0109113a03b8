"""Trainer ranks that do something together, or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from vime_core.errors import SyncError

if TYPE_CHECKING:
    from collections.abc import Callable

Told = TypeVar("Told")


class Ranks:
    """All ranks of the trainer, through torch's default process group (none for a single rank)."""

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size

    def together(self, step: Callable[[], Told]) -> list[Told]:
        """Do a step on every rank; collective. Returns what each rank's step returned, plain values, by rank.

        Raises:
            SyncError: on every rank when the step failed on another, with its reason; where it failed, its own error.
        """
        fault: Exception | None = None
        told: Told | None = None
        try:
            told = step()
        except Exception as error:
            fault = error
        answers = self._gather((told, None if fault is None else " ".join(str(fault).split())))
        if fault is not None:
            raise fault
        reasons = [reason for _, reason in answers if reason is not None]
        if reasons:
            raise SyncError(reasons[0])
        return [told for told, _ in answers]

    def _gather(self, answer: tuple[Any, str | None]) -> list[tuple[Any, str | None]]:
        if self._world_size == 1:
            return [answer]
        from torch import distributed

        answers: list[Any] = [None] * self._world_size
        distributed.all_gather_object(answers, answer)
        return answers
