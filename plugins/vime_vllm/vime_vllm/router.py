"""vllm-router in front of the engines."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from vime_core.cluster.guard import GuardedProcess
from vime_core.errors import DeadlineError, EngineError
from vime_vllm.command import router_command, router_environment
from vime_vllm.http import get_status
from vime_vllm.ports import HOST, free_port
from vime_vllm.vitals import PROBE_DEADLINE_S, Vitals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vime_core.plugins.interfaces import RolloutContext

log = logging.LoggerAdapter(logging.getLogger(__name__), {"actor": "router"})

POLL_S = 0.05
REFUSED = 401
ANSWER_S = 60.0
"""The router's patience with an engine, beyond the driver's own, which is the one that users see."""


class Router:
    """The router's process, owned by the driver."""

    def __init__(self, context: RolloutContext) -> None:
        """Nothing runs before `start`."""
        self._context = context
        self._port = free_port()
        self._log = context.log_folder / "router.log"
        self._process: GuardedProcess | None = None
        self._vitals: Vitals
        self._closing = threading.Event()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://{HOST}:{self._port}"

    def start(self, engine_urls: Sequence[str]) -> None:
        """Start the process."""
        command = router_command(
            self._context.config,
            engine_urls,
            port=self._port,
            metrics_port=free_port(),
            deadline_s=self._context.generate_deadline + ANSWER_S,
        )
        self._process = GuardedProcess(command, env=router_environment(), log=self._log, keeper=self._context.keeper)
        limit = self._context.health_deadline
        self._vitals = Vitals("the router", self._process, self._log, self._is_awake, limit)
        self._process.start()

    def wait_ready(self) -> None:
        """Wait until it answers to the run's key, and to nobody else, and has found all engines.

        Raises:
            EngineError: when it ends before, or its lock does not work.
            DeadlineError: when it does not answer in time.
        """
        end = time.monotonic() + self._context.start_deadline
        while not (self._answers() and self._is_locked()):
            self.check()
            if time.monotonic() > end:
                raise DeadlineError(
                    f"the router did not answer within {self._context.start_deadline:g} s (log: {self._log})"
                )
            if self._closing.wait(POLL_S):
                raise EngineError("the router was ended while it started")
        log.info("ready at %s (log: logs/%s)", self.url, self._log.name)

    def check(self) -> None:
        """Return when the process is alive.

        Raises:
            EngineError: names its exit status and the cause in its log.
        """
        if (death := self._vitals.death()) is not None:
            raise EngineError(death)

    def watch(self) -> str | None:
        """Return when it ends or is silent for too long: what is known of it; None when it was meant to end."""
        return self._vitals.watch(self._closing)

    def stop(self) -> None:
        """End it; safe to call twice."""
        self._closing.set()
        if self._process is not None:
            self._process.stop(self._context.stop_deadline)
            log.info("ended")

    def _answers(self) -> bool:
        answer = self._status(self._context.run_key)
        if answer == REFUSED:
            raise EngineError(f"the router refused the run's key: no engine accepted it (log: {self._log})")
        return answer == 200

    def _is_locked(self) -> bool:
        """False when no answer came, which says nothing."""
        answer = self._status(key=None)
        if answer not in (None, REFUSED):
            raise EngineError(
                f"the router answers without the run's key: install vllm-router 0.1.17 (log: {self._log})"
            )
        return answer == REFUSED

    def _is_awake(self) -> bool:
        """Asked without the key, it answers by itself; with it, it may have to ask an engine."""
        return self._status(key=None) is not None

    def _status(self, key: str | None) -> int | None:
        return get_status(f"{self.url}/health", key, deadline_s=PROBE_DEADLINE_S)
