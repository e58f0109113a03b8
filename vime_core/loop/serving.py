"""Engines that hold the weights of a model folder and answer: a run without training."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vime_core.cluster.calls import first_line
from vime_core.log import log_to
from vime_core.loop.interrupts import terminated_like_interrupted
from vime_core.loop.parts import Machines, machines
from vime_core.rewards.judge import Judge

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from typing import TypeVar

    from vime_core.loop.inputs import Inputs
    from vime_core.plugins.interfaces import RolloutBackend
    from vime_core.run.folder import RunFolder

    Result = TypeVar("Result")

log = logging.getLogger(__name__)

VERSION = 0
"""Policy version of the weights in the engines."""


@dataclass(frozen=True, slots=True)
class Serving:
    """Engines that are ready."""

    inputs: Inputs
    rollout: RolloutBackend
    judge: Judge
    """Of use only where scoring was asked for."""
    _running: Machines

    def wait_for(self, work: Coroutine[Any, Any, Result]) -> Result:
        """The result of what waits for engines and rewards."""
        return self._running.events.run_until_complete(work)


@contextmanager
def serving(inputs: Inputs, folder: RunFolder, note: Callable[[str], None], *, scores: bool) -> Iterator[Serving]:
    """Start engines, give them the weights of the model folder, and end everything on leaving.

    Args:
        inputs: of a configuration of engines alone.
        folder: gets the logs.
        note: told what is going on.
        scores: whether scoring processes are wanted.

    Raises:
        VimeError: the first cause, when a part does not start or dies.
        KeyboardInterrupt: on Ctrl-C and SIGTERM.
    """

    def tell(message: str) -> None:
        log.info("%s", message)
        note(message)

    with (
        log_to(folder.log_file, "driver"),
        _failure_logged(),
        terminated_like_interrupted(),
        machines(inputs, folder, tell, scores=scores) as running,
    ):
        engines = Serving(inputs, running.rollout, Judge(running.pool, inputs.config.rewards), running)
        running.trainers.connect(running.rollout.endpoints())
        engines.wait_for(running.rollout.pause())
        running.trainers.push(VERSION)
        engines.wait_for(running.rollout.resume())
        yield engines


@contextmanager
def _failure_logged() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        log.exception("failed: %s", first_line(error))
        raise
