"""The driver's view of all engines."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from vime_core.cluster.calls import first_line, gather
from vime_core.errors import EngineError, TrainerError
from vime_core.types import EngineEndpoint
from vime_vllm.actor import EngineActor, EngineSpec
from vime_vllm.command import engine_command, engine_environment
from vime_vllm.receiver import meets_trainer

if TYPE_CHECKING:
    from vime_core.plugins.interfaces import RolloutContext

log = logging.getLogger(__name__)

CONCURRENT_CALLS = 8
"""An engine's owner watches and starts its server, is asked for its health and ends it, all at one time."""
ANSWER_S = 30.0
"""Beyond a deadline that an engine's owner keeps itself, for its answer to arrive."""


class EngineGroup:
    """One Ray actor an engine, each of which owns a vLLM server."""

    def __init__(self, context: RolloutContext) -> None:
        """Nothing runs before `create`."""
        self._context = context
        self._names = [f"engine-{index}" for index in range(context.config.num_engines)]
        self._actors: list[Any] = []

    def create(self) -> None:
        """Create the owners.

        Raises:
            ResourceError: when the engines do not fit into memory.
        """
        import ray

        actor = ray.remote(max_concurrency=CONCURRENT_CALLS)(EngineActor)
        environment = engine_environment(self._context)
        for index, name in enumerate(self._names):
            spec = EngineSpec(
                name=name,
                command=engine_command(self._context, index),
                environment=environment,
                log=self._context.log_folder / f"{name}.log",
                run_id=self._context.run_id,
                place=self._context.engine_places[index],
                health_deadline=self._context.health_deadline,
                meets_trainer=meets_trainer(self._context.sync),
            )
            self._actors.append(actor.options(**self._context.engine_options[index]).remote(spec))

    def start(self) -> list[EngineEndpoint]:
        """Start all servers side by side and wait until each answers."""
        deadline = self._context.start_deadline
        places = self._ask("start", deadline + ANSWER_S, deadline)
        for name, (url, _) in zip(self._names, places, strict=True):
            log.info("ready at %s (log: logs/%s.log)", url, name, extra={"actor": name})
        return [
            EngineEndpoint(name=name, url=url, key=self._context.run_key, host=host)
            for name, (url, host) in zip(self._names, places, strict=True)
        ]

    async def deaths(self, index: int) -> str | None:
        """Wait for the end of engine `index`: what is known of it, or None when it was meant to end."""
        import ray

        try:
            told: str | None = await self._actors[index].watch.remote()
        except ray.exceptions.RayError as error:
            return f"the owner of {self._names[index]} died: {first_line(error)}"
        return told

    def stop(self) -> None:
        """End all servers and their owners; one that does not follow is killed, its server with it."""
        import ray

        actors, self._actors = self._actors, []
        refs = [actor.stop.remote(self._context.stop_deadline) for actor in actors]
        if refs:
            ray.wait(refs, num_returns=len(refs), timeout=self._context.stop_deadline + ANSWER_S)
        for name, actor in zip(self._names, actors, strict=False):
            ray.kill(actor, no_restart=True)
            log.info("ended", extra={"actor": name})

    def _ask(self, method: str, deadline_s: float, *arguments: Any) -> list[Any]:
        refs = [getattr(actor, method).remote(*arguments) for actor in self._actors]
        try:
            return gather(refs, self._names, what=method, deadline_s=deadline_s)
        except TrainerError as error:
            raise EngineError(str(error)) from error
