"""Engines that live in this process: a rollout backend without servers, and a sync strategy into it."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np
import xxhash

from vime_core.errors import EngineError, SyncError
from vime_core.types import Completion, EngineEndpoint, PushReport, VersionSpan

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import torch

    from vime_core.plugins.interfaces import RolloutContext
    from vime_core.types import SamplingParams

TICK_S = 0.001
"""How often a request looks whether it may go on."""


@dataclass(eq=False)
class InProcessEngine:
    """One engine: samples every token with the same probability, whatever its weights are."""

    name: str
    vocabulary: int
    weights: dict[str, torch.Tensor] = field(default_factory=dict)
    version: int = 0
    alive: bool = True


_ENGINES: WeakValueDictionary[str, InProcessEngine] = WeakValueDictionary()
"""URL -> engine; endpoints are plain data, so that a sync strategy finds its engines here."""


def engine_at(url: str) -> InProcessEngine:
    """The engine behind an endpoint.

    Raises:
        SyncError: when it is gone.
    """
    engine = _ENGINES.get(url)
    if engine is None or not engine.alive:
        raise SyncError(f"no engine answers at {url}")
    return engine


class InProcessBackend:
    """Implements `RolloutBackend` for tests: uniform samples, repeatable by seed, one token a tick."""

    def __init__(self, context: RolloutContext) -> None:
        self._context = context
        self._engines: dict[str, InProcessEngine] = {}
        self._turn = 0
        self._paused = False
        self._aborts = 0

    def start(self) -> None:
        """Make the engines."""
        for index in range(self._context.config.num_engines):
            engine = InProcessEngine(f"engine-{index}", self._context.geometry.vocab_size)
            self._engines[engine.name] = engine
            _ENGINES[self._url(engine)] = engine

    def endpoints(self) -> list[EngineEndpoint]:
        """The running engines."""
        return [
            EngineEndpoint(name=engine.name, url=self._url(engine), key=self._context.run_key, host="here")
            for engine in self._engines.values()
        ]

    async def generate(
        self, token_ids: Sequence[int], params: SamplingParams, *, engine: str | None = None
    ) -> Completion:
        """Sample one response."""
        chosen = self._choose(engine)
        seed = [self._context.seed, *token_ids, -1 if params.seed is None else params.seed]
        rng = np.random.default_rng([number + 1 for number in seed])
        tokens: list[int] = []
        spans: list[VersionSpan] = []
        aborts, finish = self._aborts, "length"
        while len(tokens) < params.max_tokens:
            while self._paused and aborts == self._aborts:
                await asyncio.sleep(TICK_S)
            if aborts != self._aborts:
                finish = "abort"
                break
            tokens.append(int(rng.integers(chosen.vocabulary)))
            spans = _extended(spans, chosen.version, len(tokens))
            if tokens[-1] in params.stop_token_ids:
                finish = "stop"
                break
            await asyncio.sleep(0)
        logprobs = np.full(len(tokens), -np.log(chosen.vocabulary), np.float32)
        return Completion(np.array(tokens, np.int64), logprobs, finish, tuple(spans))  # type: ignore[arg-type]

    async def pause(self) -> None:
        """Requests wait from now on."""
        self._paused = True

    async def resume(self) -> None:
        """Requests go on."""
        self._paused = False

    async def abort(self) -> None:
        """End all requests in flight."""
        self._aborts += 1

    async def sleep(self) -> None:
        """There is no device memory to free."""

    async def wake(self) -> None:
        """Nothing was put away."""

    def health(self) -> None:
        """Return when every engine is alive.

        Raises:
            EngineError: names a dead one.
        """
        self._require_started()
        for engine in self._engines.values():
            if not engine.alive:
                raise EngineError(f"{engine.name} died")

    def close(self) -> None:
        """Forget the engines; safe to call twice."""
        self._engines = {}

    def _choose(self, name: str | None) -> InProcessEngine:
        self._require_started()
        if name is None:
            self._turn += 1
            return list(self._engines.values())[self._turn % len(self._engines)]
        if name not in self._engines:
            raise EngineError(f"there is no engine {name!r}; there are {', '.join(self._engines)}")
        return self._engines[name]

    def _require_started(self) -> None:
        if not self._engines:
            raise EngineError("the rollout backend does not run: it was not started, or closed")

    def _url(self, engine: InProcessEngine) -> str:
        return f"inprocess://{self._context.run_id}/{engine.name}"


class InProcessSync:
    """Implements `SyncStrategy` into `InProcessBackend`: copies every tensor into every engine."""

    def __init__(self, config: Any, rank: int, world_size: int) -> None:
        self._rank = rank
        self._endpoints: list[EngineEndpoint] = []

    def connect(self, endpoints: Sequence[EngineEndpoint]) -> None:
        """Find the engines."""
        for endpoint in endpoints:
            engine_at(endpoint.url)
        self._endpoints = list(endpoints)

    def push(self, weights: Iterable[tuple[str, torch.Tensor]], version: int) -> PushReport | None:
        """Copy all weights, then stamp the engines."""
        begin = time.monotonic()
        if self._rank != 0:
            for _ in weights:
                pass
            return None
        if not self._endpoints:
            raise SyncError("weight push: no engines are connected")
        copied = {name: tensor.detach().clone() for name, tensor in weights}
        for endpoint in self._endpoints:
            engine = engine_at(endpoint.url)
            engine.weights, engine.version = copied, version
        checksums = {name: _checksum(tensor) for name, tensor in copied.items()}
        moved = sum(tensor.nbytes for tensor in copied.values())
        return PushReport(version, moved, time.monotonic() - begin, len(copied), checksums)

    def close(self) -> None:
        """Forget the engines; safe to call twice."""
        self._endpoints = []


def _checksum(tensor: torch.Tensor) -> str:
    import torch

    return xxhash.xxh3_64_hexdigest(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())


def _extended(spans: list[VersionSpan], version: int, end: int) -> list[VersionSpan]:
    if spans and spans[-1].version == version:
        return [*spans[:-1], VersionSpan(version, spans[-1].start, end)]
    return [*spans, VersionSpan(version, end - 1, end)]
