"""Do trainer and engines hold the same policy? Asked after a weight push, with one prompt.

Engines start with random weights, so a push that moved nothing, or moved a tensor to the wrong place, shows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from vime_core.errors import SyncError
from vime_core.types import Sample, SamplingParams, TrainSample

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from vime_core.config.schema import SyncConfig
    from vime_core.plugins.interfaces import Generator
    from vime_core.types import Completion, Float32Array, Prompt

TOLERANCES = {"float32": 1e-4, "bfloat16": 0.1}
"""Largest |trainer - engine| log-prob of one token by training dtype; unrelated weights differ by whole nats."""

PROBE_TOKENS = 16
"""Enough to pass through every weight, also those of attention over earlier tokens."""


class Probe:
    """Compares the trainer's log-probs of a sampled response with those that each engine reported.

    Args:
        config: tolerance.
        dtype: the trainer's.
        prompt: what is continued.
        temperature: the run's sampling temperature.
        seed: of the samples.
        max_tokens: the longest response that the engines are sized for.
        logprobs: the trainer's [R] log-probs of each sample.
    """

    def __init__(
        self,
        config: SyncConfig,
        *,
        dtype: str,
        prompt: Prompt,
        temperature: float,
        seed: int,
        max_tokens: int = PROBE_TOKENS,
        logprobs: Callable[[list[TrainSample]], list[Float32Array]],
    ) -> None:
        self._logprobs = logprobs
        self._tolerance = config.probe_tolerance if config.probe_tolerance is not None else TOLERANCES[dtype]
        self._prompt = prompt
        self._params = SamplingParams(
            temperature=temperature,
            top_p=1.0,
            top_k=-1,
            max_tokens=min(PROBE_TOKENS, max_tokens),
            stop_token_ids=(),
            seed=seed,
        )

    async def check(self, generator: Generator, engines: Sequence[str], version: int) -> float:
        """Largest difference over all engines.

        Raises:
            SyncError: names the engine whose log-probs or policy version are not the trainer's.
        """
        completions = [
            await generator.generate(self._prompt.token_ids, self._params, engine=engine) for engine in engines
        ]
        expected = self._logprobs([self._sample(index, c) for index, c in enumerate(completions)])
        worst = 0.0
        for engine, completion, logprobs in zip(engines, completions, expected, strict=True):
            self._check_version(engine, completion, version)
            difference = float(np.max(np.abs(logprobs - completion.logprobs)))
            # Written so that nan fails too.
            if not difference <= self._tolerance:
                raise SyncError(
                    f"after the push of version {version} {engine} and the trainer differ by {difference:.3g} in a "
                    f"log-prob (at most {self._tolerance:g}, sync.probe_tolerance): the engine does not hold the "
                    "trainer's weights"
                )
            worst = max(worst, difference)
        return worst

    def _sample(self, index: int, completion: Completion) -> TrainSample:
        length = len(completion.token_ids)
        sample = Sample(
            prompt_id=self._prompt.id,
            group_id="probe",
            index=index,
            prompt_ids=np.asarray(self._prompt.token_ids, dtype=np.int64),
            response_ids=completion.token_ids,
            loss_mask=np.ones(length, dtype=np.bool_),
            rollout_logprobs=completion.logprobs,
            finish_reason=completion.finish_reason,
            policy_versions=completion.policy_versions,
        )
        return TrainSample(sample=sample, advantages=np.zeros(length), loss_mask=sample.loss_mask)

    @staticmethod
    def _check_version(engine: str, completion: Completion, version: int) -> None:
        seen = {span.version for span in completion.policy_versions}
        if seen != {version}:
            raise SyncError(f"after the push of version {version} {engine} answers with versions {sorted(seen)}")
