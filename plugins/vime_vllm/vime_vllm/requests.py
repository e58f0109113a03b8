"""Requests to engines and router, inside the backend's event loop."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from vime_core.errors import DeadlineError, EngineError
from vime_vllm.completion import GENERATE_PATH, parse_completion, request_body
from vime_vllm.http import CallError, CallTimeoutError, call, new_session
from vime_vllm.watch import DeathWatch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vime_core.plugins.interfaces import RolloutContext
    from vime_core.types import Completion, EngineEndpoint, SamplingParams
    from vime_vllm.engines import EngineGroup
    from vime_vllm.router import Router

CONTROL_DEADLINE_S = 120.0
"""For an engine to pause, resume or abort: it first finishes the step that it computes."""
DEATH_PATIENCE_S = 5.0
"""A broken connection is told as the death of an engine when one is noticed within this time."""
ABORT_POLL_S = 0.2


class Requests:
    """Everything that happens inside the backend's event loop."""

    def __init__(self, context: RolloutContext, router: Router, endpoints: Sequence[EngineEndpoint]) -> None:
        """Made by `open`."""
        self._context = context
        self._router = router
        self._endpoints = {endpoint.name: endpoint for endpoint in endpoints}
        self._session = new_session(context.run_key)
        self._watch = DeathWatch()
        self._in_flight: set[asyncio.Future[None]] = set()
        """One a request, done when the request has returned."""
        self._cache_sleeps = False
        """Whether the engines' KV caches have no memory, though their weights may have."""
        self._waking = asyncio.Lock()
        self._watchers: list[asyncio.Task[None]] = []

    @classmethod
    async def open(
        cls, context: RolloutContext, router: Router, endpoints: Sequence[EngineEndpoint], engines: EngineGroup
    ) -> Requests:
        """Open connections and watch engines and router."""
        self = cls(context, router, endpoints)
        watchers = [self._watch_router(), *(self._watch_engine(engines, index) for index in range(len(endpoints)))]
        self._watchers = [asyncio.ensure_future(watcher) for watcher in watchers]
        return self

    async def generate(self, token_ids: Sequence[int], params: SamplingParams, engine: str | None) -> Completion:
        """See `Generator.generate`."""
        await self.wake_cache()
        name, url = (engine, self._endpoint(engine).url) if engine is not None else ("the router", self._router.url)
        body = request_body(token_ids, params)
        returned = asyncio.get_running_loop().create_future()
        self._in_flight.add(returned)
        try:
            return parse_completion(
                await self._call(name, url + GENERATE_PATH, "generate", self._context.generate_deadline, body=body)
            )
        finally:
            self._in_flight.discard(returned)
            returned.set_result(None)

    async def control(self, path: str, query: Mapping[str, str] | None = None) -> None:
        """POST to every engine at the same time."""
        calls = (
            self._call(endpoint.name, endpoint.url + path, path[1:], CONTROL_DEADLINE_S, query=query, body={})
            for endpoint in self._endpoints.values()
        )
        await asyncio.gather(*calls)

    async def sleep(self) -> None:
        """Let all engines free their weights and KV caches; nothing is scheduled until both are back."""
        await self.control("/sleep", {"level": "1", "mode": "keep"})
        self._cache_sleeps = True

    async def wake_weights(self) -> None:
        """Undo `sleep` for the weights, so that new ones can be pushed while the KV caches still take no memory."""
        await self.control("/wake_up", {"tags": "weights"})

    async def wake_cache(self) -> None:
        """Undo `sleep` for the KV caches if they sleep; engines then schedule again."""
        if not self._cache_sleeps:
            return
        async with self._waking:
            if self._cache_sleeps:
                await self.control("/wake_up", {"tags": "kv_cache"})
                self._cache_sleeps = False

    async def abort(self) -> None:
        """End the requests that are in flight now; those on their way to an engine are asked for again."""
        pending = set(self._in_flight)
        end = time.monotonic() + CONTROL_DEADLINE_S
        while pending:
            await self.control("/abort_requests")
            _, pending = await asyncio.wait(pending, timeout=ABORT_POLL_S)
            if pending and time.monotonic() > end:
                raise DeadlineError(
                    f"abort: {len(pending)} requests did not return within {CONTROL_DEADLINE_S:g} s; see the engines' "
                    f"logs in {self._context.log_folder}"
                )

    def check(self) -> None:
        """Return when nothing has died; from any thread.

        Raises:
            EngineError: names what has, and why.
        """
        self._watch.check()

    async def close(self) -> None:
        """Fail what is in flight and close the connections."""
        self._watch.report("the rollout backend was closed")
        for watcher in self._watchers:
            watcher.cancel()
        if self._in_flight:
            await asyncio.wait(self._in_flight)
        await self._session.close()

    async def _call(self, name: str, url: str, what: str, deadline_s: float, **arguments: Any) -> Any:
        """POST; whatever goes wrong is an error that names the part and, when one died, the cause in its log."""
        try:
            return await self._watch.guard(call(self._session, "POST", url, deadline_s=deadline_s, **arguments))
        except CallTimeoutError as error:
            self._watch.check()
            raise DeadlineError(f"{what}: {name} gave {error}; its log is in {self._context.log_folder}") from error
        except CallError as error:
            if not error.is_refusal:
                await self._watch.wait(DEATH_PATIENCE_S)
            raise EngineError(f"{what}: {name} failed: {error}") from error

    def _endpoint(self, name: str) -> EngineEndpoint:
        if name not in self._endpoints:
            raise EngineError(f"there is no engine {name}; there are {', '.join(self._endpoints)}")
        return self._endpoints[name]

    async def _watch_engine(self, engines: EngineGroup, index: int) -> None:
        death = await engines.deaths(index)
        if death is not None:
            self._watch.report(death)

    async def _watch_router(self) -> None:
        death = await asyncio.to_thread(self._router.watch)
        if death is not None:
            self._watch.report(death)
