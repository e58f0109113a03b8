"""The first death is what the user reads, wherever the driver waits when it happens."""

from __future__ import annotations

import logging
import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from vime_core.errors import DeadlineError, EngineError, SyncError, TrainerError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType

CHECK_S = 0.5
PATIENCE_S = 5.0
"""An error that may follow from a death is told as that death when one is noticed within this time."""
INSIST_S = 10.0
SIGNAL = signal.SIGUSR1
JOIN_DEADLINE_S = 30.0

log = logging.getLogger(__name__)


@contextmanager
def vigil(checks: Sequence[Callable[[], None]]) -> Iterator[Vigil]:
    """While the block runs in the main thread, ask every check again and again; the first error is raised there.

    Args:
        checks: each returns at once, and raises when a part of the run is dead or has been silent for too long. Called
            from a thread.

    Raises:
        VimeError: what a check raised first.
    """
    watcher = Vigil(checks)
    before = signal.signal(SIGNAL, watcher.interrupt)
    watcher.start()
    try:
        with watcher.first_cause():
            yield watcher
    finally:
        watcher.stop()
        signal.signal(SIGNAL, before)


class Vigil:
    """The thread that asks, and the handler of its signal in the main thread.

    The handler raises `KeyboardInterrupt`, which gets through everything: Ray and event loops swallow other exceptions
    of signal handlers.
    """

    def __init__(self, checks: Sequence[Callable[[], None]]) -> None:
        self._checks = checks
        self._main = threading.get_ident()
        self._thread = threading.Thread(target=self._run, name="vigil", daemon=True)
        self._armed = True
        self._found = threading.Event()
        self._stopped = threading.Event()
        self._error: Exception | None = None

    @contextmanager
    def first_cause(self) -> Iterator[None]:
        """Let the block raise what a check found in place of what followed from it. May be nested.

        An error that may be the consequence of a death waits a moment for that death.
        """
        try:
            yield
        except KeyboardInterrupt:
            if self._error is None:
                raise
            self._armed = False
            raise self._error from None
        except (DeadlineError, EngineError, SyncError, TrainerError) as error:
            cause = self._cause(PATIENCE_S)
            if cause is None or str(cause) == str(error):
                raise
            raise cause from error

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; the main thread is no longer interrupted."""
        self._armed = False
        self._stopped.set()
        self._thread.join(JOIN_DEADLINE_S)

    def interrupt(self, signum: int, frame: FrameType | None) -> None:
        """Interrupt whatever the main thread waits for, once something was found."""
        if self._armed and self._error is not None:
            raise KeyboardInterrupt

    def _cause(self, patience_s: float) -> Exception | None:
        """What was found, now or within the patience; the main thread is no longer interrupted."""
        if self._armed:
            self._armed = False
            self._found.wait(patience_s)
        return self._error

    def _run(self) -> None:
        while not self._stopped.wait(CHECK_S):
            self._error = self._ask()
            if self._error is not None:
                self._found.set()
                log.error("found: %s", self._error)
                self._insist()
                return

    def _ask(self) -> Exception | None:
        for check in self._checks:
            try:
                check()
            except Exception as error:
                return error
        return None

    def _insist(self) -> None:
        """Again and again, in case that somebody swallowed the interrupt."""
        while self._armed:
            signal.pthread_kill(self._main, SIGNAL)
            self._stopped.wait(INSIST_S)
