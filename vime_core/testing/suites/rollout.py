"""Conformance of rollout backends."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, cast
from unittest import SkipTest

import numpy as np

from vime_core.accelerators.cpu import CpuAccelerator
from vime_core.config.schema import AcceleratorConfig
from vime_core.errors import EngineError
from vime_core.plugins.interfaces import RolloutBackend, RolloutContext
from vime_core.testing.contract import Nonconformance, require, require_equal
from vime_core.testing.models import write_tiny_model
from vime_core.testing.suite import ComponentSuite, scratch
from vime_core.types import NodePlace, SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from pathlib import Path

    from vime_core.plugins.entries import RolloutBackendEntry
    from vime_core.types import Completion

DEADLINE_S = 120.0

PARAMS = SamplingParams(temperature=1.0, top_p=1.0, top_k=-1, max_tokens=16, stop_token_ids=(), seed=0)

PROMPT = (5, 6, 7)

LATER_S = 0.3
"""A request that a paused engine answers is found within this time."""


class RolloutBackendSuite(ComponentSuite):
    """Tests of a rollout backend.

    Those that need engines are skipped unless the engines run in this process (`in_process`), or the plugin's test
    replaces `running` by a backend that it started.
    """

    group = "rollout"
    interface = RolloutBackend

    in_process: ClassVar[bool] = False
    """Whether `start` needs nothing besides the tests' own context: no Ray, no keeper, no real model."""

    def test_it_can_be_closed_before_it_was_started(self) -> None:
        """A run may fail before; and twice."""
        with self.made() as backend:
            backend.close()
            backend.close()

    def test_before_the_start_it_says_that_it_does_not_run(self) -> None:
        """With EngineError, and at once."""
        with self.made() as backend:
            for what, call in (
                ("generate", lambda: asyncio.run(_within(backend.generate(PROMPT, PARAMS)))),
                ("health", backend.health),
            ):
                self.require_engine_error(call, f"{what} before the start")

    def test_every_engine_has_an_endpoint(self) -> None:
        """With names of their own, and the run's key."""
        with self.running() as backend:
            endpoints = backend.endpoints()
            require(bool(endpoints), "a running backend has no endpoints")
            for what in ("name", "url"):
                values = [getattr(endpoint, what) for endpoint in endpoints]
                require(
                    all(values) and len(set(values)) == len(values), f"every engine needs a {what} of its own: {values}"
                )
            require(all(endpoint.key for endpoint in endpoints), "an endpoint has no key")
            require(backend.health() is None, "health must return None when all is well")

    def test_a_completion_is_whole(self) -> None:
        """Tokens, log-probs and policy versions of one length; cut at max_tokens."""
        with self.running() as backend:
            completion = self.generate(backend, replace(PARAMS, max_tokens=5))
            self.require_whole(completion, 5)
            require_equal(completion.finish_reason, "length", "the finish reason of a response that was cut")

    def test_a_stop_token_ends_the_response_and_belongs_to_it(self) -> None:
        """The algorithm learns when to stop."""
        with self.running() as backend:
            stop = int(self.generate(backend, PARAMS).token_ids[3])
            completion = self.generate(backend, replace(PARAMS, stop_token_ids=(stop,)))
            require_equal(completion.finish_reason, "stop", "the finish reason at a stop token")
            require_equal(int(completion.token_ids[-1]), stop, "the last token of the response")
            self.require_whole(completion, PARAMS.max_tokens)

    def test_a_seed_makes_a_response_repeatable(self) -> None:
        """On every engine, and among other requests."""
        with self.running() as backend:
            [first, *again] = [
                self.generate(backend, PARAMS, engine=engine.name).token_ids for engine in backend.endpoints()
            ]
            again.append(self.generate(backend, PARAMS).token_ids)
            require(all(np.array_equal(first, other) for other in again), "one seed gives different responses")
            others = [self.generate(backend, replace(PARAMS, seed=seed)).token_ids for seed in (1, 2)]
            different = any(not np.array_equal(first, other) for other in others)
            require(different, "three seeds give the same response")

    def test_an_engine_that_is_not_there_is_told(self) -> None:
        """With EngineError."""
        with self.running() as backend:
            self.require_engine_error(
                lambda: self.generate(backend, PARAMS, engine="nosuch"), "generate on engine 'nosuch'"
            )

    def test_paused_engines_answer_nothing_until_they_resume(self) -> None:
        """Weights change in between."""

        async def paused(backend: Any) -> bool:
            await backend.pause()
            request = asyncio.ensure_future(backend.generate(PROMPT, PARAMS))
            done, _ = await asyncio.wait([request], timeout=LATER_S)
            await backend.resume()
            self.require_whole(await request, PARAMS.max_tokens)
            return bool(done)

        with self.running() as backend:
            require(not asyncio.run(_within(paused(backend))), "a paused engine answers a request")

    def test_abort_ends_what_is_in_flight(self) -> None:
        """The callers get what there is, with finish reason `abort`; later requests are answered."""

        async def aborted(backend: Any) -> Completion:
            await backend.pause()
            request = asyncio.ensure_future(backend.generate(PROMPT, PARAMS))
            await asyncio.wait([request], timeout=LATER_S)
            await backend.abort()
            done, _ = await asyncio.wait([request], timeout=DEADLINE_S / 4)
            await backend.resume()
            require(bool(done), "a request in flight does not return after abort")
            completion: Completion = await request
            return completion

        with self.running() as backend:
            completion = asyncio.run(_within(aborted(backend)))
            require_equal(completion.finish_reason, "abort", "the finish reason of an aborted request")
            self.require_whole(completion, PARAMS.max_tokens, least=0)
            self.require_whole(self.generate(backend, PARAMS), PARAMS.max_tokens)

    def test_engines_answer_after_sleep_and_wake(self) -> None:
        """The trainer runs in between."""

        async def rested(backend: Any) -> Completion:
            await backend.sleep()
            await backend.wake()
            completion: Completion = await backend.generate(PROMPT, PARAMS)
            return completion

        with self.running() as backend:
            before = self.generate(backend, PARAMS)
            after = asyncio.run(_within(rested(backend)))
            require(np.array_equal(before.token_ids, after.token_ids), "sleep and wake change the answer")

    def generate(self, backend: Any, params: SamplingParams, engine: str | None = None) -> Completion:
        """One response to the tests' prompt."""
        completion: Completion = asyncio.run(_within(backend.generate(PROMPT, params, engine=engine)))
        return completion

    def require_whole(self, completion: Completion, most: int, least: int = 1) -> None:
        """One log-prob a token, and policy versions without gaps."""
        length = len(completion.token_ids)
        require(least <= length <= most, f"a response has {length} tokens, allowed are {least} to {most}")
        require_equal(completion.token_ids.dtype, np.dtype(np.int64), "the dtype of token_ids")
        require_equal(completion.logprobs.dtype, np.dtype(np.float32), "the dtype of logprobs")
        require_equal(len(completion.logprobs), length, "the number of log-probs")
        require(bool(np.isfinite(completion.logprobs).all()), "a log-prob is not finite")
        require(bool((completion.logprobs <= 1e-6).all()), "a log-prob is above 0")
        position = 0
        for span in completion.policy_versions:
            require(span.start == position < span.end, f"policy versions have gaps: {completion.policy_versions}")
            position = span.end
        require_equal(position, length, "the number of tokens that policy_versions cover")

    def require_engine_error(self, call: Callable[[], Any], when: str) -> None:
        """Check that a call fails as it should."""
        try:
            call()
        except EngineError:
            return
        except Exception as error:
            raise Nonconformance(f"{when} raises {type(error).__name__}: {error}, not EngineError") from error
        raise Nonconformance(f"{when} raises nothing; it must raise EngineError")

    @contextmanager
    def made(self) -> Iterator[Any]:
        """Not started.

        Raises:
            SkipTest: for a component without engines.
        """
        if not cast("RolloutBackendEntry", self.component().entry).engines:
            raise SkipTest("it has no engines")
        with scratch() as folder:
            backend = self.build(self.context(folder))
            try:
                yield backend
            finally:
                backend.close()

    @contextmanager
    def running(self) -> Iterator[Any]:
        """A started backend with two engines.

        Raises:
            SkipTest: when nothing says how to start one.
        """
        if not self.in_process:
            raise SkipTest(
                "needs running engines: run the package's own tests, which set `in_process` or replace `running`"
            )
        with self.made() as backend:
            backend.start()
            yield backend

    def context(self, folder: Path) -> RolloutContext:
        """For engines on the CPU, with a tiny model; there is no Ray and no keeper."""
        model = write_tiny_model(folder / "model")
        accelerator = CpuAccelerator(AcceleratorConfig())
        config = self.config(num_engines=2, max_prompt_tokens=64, max_response_tokens=64)
        return RolloutContext(
            config=config,
            model_path=model.path,
            geometry=model.geometry,
            accelerator=accelerator,
            sync="none",
            dtype="float32",
            run_id=secrets.token_hex(4),
            run_key=secrets.token_urlsafe(16),
            seed=0,
            threads=1,
            engine_options=[{"num_cpus": 0}] * 2,
            engine_places=[NodePlace(address="127.0.0.1", keeper="")] * 2,
            keeper="",
            log_folder=folder / "logs",
            start_deadline=DEADLINE_S,
            generate_deadline=DEADLINE_S,
            stop_deadline=30.0,
        )


async def _within(call: Coroutine[Any, Any, Any]) -> Any:
    return await asyncio.wait_for(call, DEADLINE_S)
