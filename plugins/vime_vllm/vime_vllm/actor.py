"""The owner of one engine: a Ray actor on the engine's node."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vime_core.cluster.guard import GuardedProcess
from vime_core.errors import DeadlineError, EngineError
from vime_vllm.http import get_status
from vime_vllm.leftovers import Leftovers
from vime_vllm.logs import LINES, cause_in
from vime_vllm.middleware import KEY_VARIABLE
from vime_vllm.ports import HOST, free_port

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

POLL_S = 0.1
PROBE_DEADLINE_S = 5.0


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """What an engine's owner starts."""

    name: str
    command: Sequence[str]
    """Without the port, which the owner chooses on its node."""
    environment: Mapping[str, str] = field(repr=False)
    """On top of the owner's own; holds the run's key."""
    log: Path
    run_id: str
    keeper: str
    """Address of the node's keeper."""


class EngineActor:
    """Starts, watches and ends one vLLM server. Methods may be called at the same time, from several threads."""

    def __init__(self, spec: EngineSpec) -> None:
        """Nothing runs before `start`."""
        self._spec = spec
        self._closing = threading.Event()
        self._url = f"http://{HOST}:{(port := free_port())}"
        # Ray's variables are left out: its token is none of the server's business.
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        self._leftovers = Leftovers(spec.run_id, spec.name, spec.keeper)
        self._process = GuardedProcess(
            [*spec.command, "--port", str(port)],
            env={**inherited, **spec.environment, **self._leftovers.environment},
            log=spec.log,
            keeper=spec.keeper,
        )

    def start(self, deadline_s: float) -> tuple[str, str]:
        """Start the server and wait until it answers.

        Returns:
            (URL, Ray node id)

        Raises:
            EngineError: when the server ends before it answers.
            DeadlineError: when it does not answer in time.
        """
        import ray

        end = time.monotonic() + deadline_s
        self._leftovers.create()
        self._process.start()
        while not self._answers():
            self._check_alive()
            if time.monotonic() > end:
                raise DeadlineError(
                    f"{self._spec.name} did not answer within {deadline_s:g} s of its start: {self._cause()}; raise "
                    "deadlines.start if it only needs more time"
                )
            if self._closing.wait(POLL_S):
                raise EngineError(f"{self._spec.name} was ended while it started")
        self._leftovers.find()
        return self._url, ray.get_runtime_context().get_node_id()

    def watch(self) -> str | None:
        """Return when the server ends: what is known of it, or None when it was meant to end."""
        while not self._closing.wait(POLL_S):
            status = self._process.poll()
            if status is not None:
                return self._describe(status)
        return None

    def check(self) -> None:
        """Return when the server is alive and answers.

        Raises:
            EngineError: names its exit status and the cause in its log, or says that it does not answer.
        """
        self._check_alive()
        if not self._answers():
            self._check_alive()
            raise EngineError(f"{self._spec.name} does not answer within {PROBE_DEADLINE_S:g} s: {self._cause()}")

    def stop(self, deadline_s: float) -> None:
        """End the server and delete what it leaves; safe to call twice and before it runs."""
        self._closing.set()
        self._process.stop(deadline_s)
        self._leftovers.delete()

    def _answers(self) -> bool:
        key = self._spec.environment[KEY_VARIABLE]
        return get_status(f"{self._url}/health", key, deadline_s=PROBE_DEADLINE_S) == 200

    def _check_alive(self) -> None:
        status = self._process.poll()
        if status is not None:
            raise EngineError(self._describe(status))

    def _describe(self, status: int) -> str:
        return f"{self._spec.name} ended with exit status {status}: {self._cause()}"

    def _cause(self) -> str:
        return f"{cause_in(self._process.log_tail(LINES))} (log: {self._spec.log})"
