"""The rollout backend `vllm`: engines, the router in front of them, and requests to both."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

from vime_core.errors import EngineError
from vime_vllm.command import engines_sleep
from vime_vllm.engines import EngineGroup
from vime_vllm.loop_thread import LoopThread
from vime_vllm.requests import Requests
from vime_vllm.router import Router

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from vime_core.plugins.interfaces import RolloutContext
    from vime_core.types import Completion, EngineEndpoint, SamplingParams


class VllmBackend:
    """Implements `RolloutBackend`. Requests run in a thread of their own, so they may come from any event loop."""

    def __init__(self, context: RolloutContext) -> None:
        """Nothing runs before `start`."""
        self._context = context
        self._loop = LoopThread("vllm-requests")
        self._engines = EngineGroup(context)
        self._router = Router(context)
        self._endpoints: list[EngineEndpoint] = []
        self._requests: Requests | None = None
        self._lock = threading.Lock()
        self._closed = False
        self._cleanup = ExitStack()

    def start(self) -> None:
        """Start engines, side by side, and then the router, and wait until they answer.

        Raises:
            EngineError: a server ended; names it and the cause in its log.
            DeadlineError: a server did not answer in time.
            ResourceError: the engines do not fit into memory.
        """
        self._own(self._loop.start, self._loop.close)
        self._own(self._engines.create, self._engines.stop)
        self._endpoints = self._engines.start()
        urls = [endpoint.url for endpoint in self._endpoints]
        self._own(lambda: self._router.start(urls), self._router.stop)
        self._router.wait_ready()
        self._own(self._open, self._shut)

    def endpoints(self) -> list[EngineEndpoint]:
        """The running engines."""
        return list(self._endpoints)

    async def generate(
        self, token_ids: Sequence[int], params: SamplingParams, *, engine: str | None = None
    ) -> Completion:
        """Sample one response, see `Generator`."""
        return await self._loop.call(self._opened().generate(token_ids, params, engine))

    async def pause(self) -> None:
        """Let no engine schedule anything; the caches are emptied, so what was in flight is computed anew."""
        await self._loop.call(self._opened().control("/pause", {"mode": "keep", "clear_cache": "true"}))

    async def resume(self) -> None:
        """Undo `pause`; KV caches that sleep wake first."""
        requests = self._opened()
        await self._loop.call(requests.wake_cache())
        await self._loop.call(requests.control("/resume"))

    async def abort(self) -> None:
        """End all requests in flight; they return what they have, with finish reason `abort`.

        Raises:
            DeadlineError: when a request does not return.
        """
        await self._loop.call(self._opened().abort())

    async def sleep(self) -> None:
        """Free the device memory of weights and KV caches; nothing where engines do not sleep."""
        if engines_sleep(self._context):
            await self._loop.call(self._opened().sleep())

    async def wake(self) -> None:
        """Undo `sleep`: the weights now, the KV caches when they are needed, by `resume` or the first request.

        So a weight push, which comes first, has the memory of the KV caches for its buffers.
        """
        if engines_sleep(self._context):
            await self._loop.call(self._opened().wake_weights())

    def health(self) -> None:
        """Return at once when every engine and the router are alive, as far as their watchers know.

        Raises:
            EngineError: names the part that is dead or silent, how it ended and the cause in its log.
        """
        self._opened().check()

    def close(self) -> None:
        """End router and engines; safe to call twice, after a failed start and while another thread starts."""
        with self._lock:
            self._closed = True
            cleanup = self._cleanup.pop_all()
        cleanup.close()

    def _own(self, start: Callable[[], None], stop: Callable[[], None]) -> None:
        """Start a part unless the backend was closed meanwhile; `close` stops it, also when `start` fails."""
        with self._lock:
            if self._closed:
                raise EngineError("the rollout backend was closed while it started")
            self._cleanup.callback(stop)
            start()

    def _open(self) -> None:
        self._requests = self._loop.run(Requests.open(self._context, self._router, self._endpoints, self._engines))

    def _shut(self) -> None:
        requests, self._requests = self._requests, None
        if requests is not None:
            self._loop.run(requests.close())

    def _opened(self) -> Requests:
        if self._requests is None:
            raise EngineError("the rollout backend does not run: it was not started, or closed")
        return self._requests
