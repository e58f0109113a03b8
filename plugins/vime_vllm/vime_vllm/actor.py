"""The owner of one engine: a Ray actor on the engine's node."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vime_core.accelerators.network import collective_environment
from vime_core.cluster.guard import GuardedProcess
from vime_core.cluster.hosts import interface_of, memory_identity
from vime_core.cluster.keeper import KeeperClient
from vime_core.errors import DeadlineError, EngineError
from vime_vllm.http import get_status
from vime_vllm.leftovers import Leftovers
from vime_vllm.middleware import KEY_VARIABLE
from vime_vllm.ports import free_port, http_url
from vime_vllm.vitals import PROBE_DEADLINE_S, Vitals

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from vime_core.types import NodePlace

POLL_S = 0.1


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
    place: NodePlace
    health_deadline: float
    """Seconds that it may leave health checks unanswered."""
    meets_trainer: bool = False
    """Whether its workers are in a process group with the trainer, whose network they then use instead of loopback."""


class EngineActor:
    """Starts, watches and ends one vLLM server. Methods may be called at the same time, from several threads."""

    def __init__(self, spec: EngineSpec) -> None:
        """Nothing runs before `start`."""
        self._spec = spec
        self._closing = threading.Event()
        port = free_port(spec.place.address)
        self._url = http_url(spec.place.address, port)
        # Ray's variables are left out: its token is none of the server's business.
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        self._leftovers = Leftovers(spec.run_id, spec.name, spec.place.keeper)
        self._process = GuardedProcess(
            [*spec.command, "--port", str(port)],
            env={**inherited, **_network(spec), **spec.environment, **self._leftovers.environment},
            log=spec.log,
            keeper=spec.place.keeper,
        )
        self._vitals = Vitals(spec.name, self._process, spec.log, self._answers, spec.health_deadline)

    def start(self, deadline_s: float) -> tuple[str, str]:
        """Start the server and wait until it answers.

        Returns:
            (URL, `memory_identity` of the node)

        Raises:
            EngineError: when the server ends before it answers.
            DeadlineError: when it does not answer in time.
        """
        # A Ray worker that was stopped outlives its job.
        KeeperClient(self._spec.place.keeper).register_process(os.getpid())
        end = time.monotonic() + deadline_s
        self._leftovers.create()
        self._process.start()
        while not self._answers():
            self._check_alive()
            if time.monotonic() > end:
                raise DeadlineError(
                    f"{self._spec.name} did not answer within {deadline_s:g} s of its start: {self._vitals.cause()}; "
                    "raise deadlines.start if it only needs more time"
                )
            if self._closing.wait(POLL_S):
                raise EngineError(f"{self._spec.name} was ended while it started")
        self._leftovers.find()
        return self._url, memory_identity()

    def watch(self) -> str | None:
        """Return when the server ends or is silent for too long: what is known of it; None when it was meant to end."""
        return self._vitals.watch(self._closing)

    def stop(self, deadline_s: float) -> None:
        """End the server and delete what it leaves; safe to call twice and before it runs."""
        self._closing.set()
        self._process.stop(deadline_s)
        self._leftovers.delete()
        # Ray ends this process now, and would tell the user of its death, should the keeper come first.
        KeeperClient(self._spec.place.keeper).forget_process(os.getpid())

    def _answers(self) -> bool:
        key = self._spec.environment[KEY_VARIABLE]
        return get_status(f"{self._url}/health", key, deadline_s=PROBE_DEADLINE_S) == 200

    def _check_alive(self) -> None:
        death = self._vitals.death()
        if death is not None:
            raise EngineError(death)


def _network(spec: EngineSpec) -> dict[str, str]:
    interface = interface_of(spec.place.address) if spec.meets_trainer else None
    return collective_environment(interface) if interface else {}
