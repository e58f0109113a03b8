"""vLLM's weight-update session, on all engines at the same time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from vime_core.errors import SyncError
from vime_vllm.http import CallError, call, new_session
from vime_vllm.loop_thread import LoopThread
from vime_vllm.sync.answers import Answers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from concurrent.futures import Future

    from vime_core.types import EngineEndpoint
    from vime_vllm.sync.clock import Clock


class WeightSessions:
    """Sends every message to all engines; each must agree, or the push has failed.

    Args:
        endpoints: the engines.
        deadline_s: seconds for each message.
    """

    def __init__(self, endpoints: Sequence[EngineEndpoint], deadline_s: float) -> None:
        self._endpoints = list(endpoints)
        self._deadline_s = deadline_s
        self._loop = LoopThread("vime-weight-push")
        self._loop.start()
        self._session = self._loop.run(self._open())

    def init(self, info: Mapping[str, Any]) -> None:
        """Prepare the engines' receivers; `SyncError` names an engine that failed, here and below."""
        self._post("/init_weight_transfer_engine", {"init_info": info}).result()

    def init_each(self, infos: Mapping[str, Mapping[str, Any]], clock: Clock) -> Answers:
        """Prepare each engine's receivers with what is meant for it, by the engine's name."""
        return self._each(
            "/init_weight_transfer_engine", {name: {"init_info": info} for name, info in infos.items()}, clock
        )

    def workers(self) -> dict[str, int]:
        """How many workers each engine has, by its name."""
        answers = self._loop.run(self._all("GET", "/get_world_size", None))
        return {endpoint.name: answer["world_size"] for endpoint, answer in zip(self._endpoints, answers, strict=True)}

    def start(self) -> None:
        """Begin an update; the engines must be paused."""
        self._post("/start_weight_update", {}).result()

    def start_each(self, clock: Clock) -> Answers:
        """Begin an update, see `start`, within the time that is left."""
        return self._each("/start_weight_update", {}, clock)

    def update_each(self, info: Mapping[str, Any], clock: Clock) -> Answers:
        """Hand over one bucket, see `update`, within the time that is left."""
        body = {"update_info": info}
        return self._each("/update_weights", {endpoint.name: body for endpoint in self._endpoints}, clock)

    def update(self, info: Mapping[str, Any]) -> Future[Any]:
        """Hand over one bucket; the future is done when all engines have loaded it."""
        return self._post("/update_weights", {"update_info": info})

    def finish_each(self, version: int, clock: Clock) -> None:
        """See `finish`, within the time that is left."""
        body = {"weight_version": str(version)}
        self._each("/finish_weight_update", {endpoint.name: body for endpoint in self._endpoints}, clock).wait(clock)
        self._require_version(version, clock.left())

    def finish(self, version: int) -> None:
        """End the update, stamp the weights and make sure that every engine now reports `version`."""
        self._post("/finish_weight_update", {"weight_version": str(version)}).result()
        self._require_version(version, self._deadline_s)

    def _require_version(self, version: int, deadline_s: float) -> None:
        answers = self._loop.run(self._all("GET", "/weight_info", None, deadline_s))
        for endpoint, answer in zip(self._endpoints, answers, strict=True):
            if answer.get("weight_version") != str(version):
                raise SyncError(f"after the push of version {version} {endpoint.name} reports {answer}")

    def close(self) -> None:
        """Close the connections; safe to call twice."""
        if not self._session.closed:
            self._loop.run(self._session.close())
        self._loop.close()

    async def _open(self) -> Any:
        return new_session(self._endpoints[0].key)

    def _post(self, path: str, body: Any) -> Future[list[Any]]:
        return self._loop.submit(self._all("POST", path, body))

    def _each(self, path: str, bodies: Mapping[str, Any], clock: Clock) -> Answers:
        """Bodies by the engine's name, an empty one for others."""
        calls = {
            endpoint.name: self._one(endpoint, "POST", path, bodies.get(endpoint.name, {}), clock.left())
            for endpoint in self._endpoints
        }
        return Answers({name: self._loop.submit(call) for name, call in calls.items()})

    async def _all(self, method: str, path: str, body: Any, deadline_s: float | None = None) -> list[Any]:
        limit = self._deadline_s if deadline_s is None else deadline_s
        return await asyncio.gather(*(self._one(endpoint, method, path, body, limit) for endpoint in self._endpoints))

    async def _one(self, endpoint: EngineEndpoint, method: str, path: str, body: Any, deadline_s: float) -> Any:
        try:
            return await call(self._session, method, endpoint.url + path, deadline_s=deadline_s, body=body)
        except CallError as error:
            raise SyncError(f"weight push: {endpoint.name} failed: {error}") from error
