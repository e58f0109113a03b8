"""The training half of a step, seen from the driver: samples in, metrics out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from vime_core.data.batching import attach, build_update, pack, plan, split_updates, unpack

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vime_core.cluster.trainers import TrainerGroup
    from vime_core.config.schema import TrainConfig
    from vime_core.loop.clock import StageClock
    from vime_core.plugins.interfaces import Algorithm
    from vime_core.types import Float32Array, TrainSample, UpdateReport


class Trainer:
    """Log-probs and updates over samples; hides packing and data parallelism.

    Args:
        group: the ranks.
        algorithm: the same as on the ranks.
        config: packing limits.
    """

    def __init__(self, group: TrainerGroup, algorithm: Algorithm, config: TrainConfig) -> None:
        self._group = group
        self._algorithm = algorithm
        self._max_tokens = config.max_tokens_per_device

    def logprobs(self, samples: Sequence[TrainSample], *, reference: bool = False) -> list[Float32Array]:
        """[R] log-probs of each sample's response under the current (or reference) policy."""
        lengths = [len(s.sample.prompt_ids) + len(s.sample.response_ids) for s in samples]
        rows = plan(lengths, max_tokens=self._max_tokens, ranks=self._group.data_parallel_size)
        packed = [[pack(samples, micro_batch) for micro_batch in rank] for rank in rows]
        values = self._group.logprobs(packed, reference=reference)
        return unpack([m for rank in packed for m in rank], [v for rank in values for v in rank], samples)

    def step(self, samples: Sequence[TrainSample], clock: StageClock) -> dict[str, float]:
        """All updates of one step; `clock` learns the times of the trainer's passes.

        Returns:
            `train/*` metrics: means over the updates, the last learning rate, and `train/updates`.
        """
        needs = self._algorithm.needs()
        old = ref = None
        if needs.old_logprobs or needs.ref_logprobs:
            with clock.stage("logprob"):
                old = self.logprobs(samples) if needs.old_logprobs else None
                ref = self.logprobs(samples, reference=True) if needs.ref_logprobs else None
        reports = []
        difference = None if old is None else logprob_difference(samples, old)
        start = 0
        for part in split_updates(samples, needs.updates_per_rollout):
            rows = slice(start, start + len(part))
            start += len(part)
            report, logprobs = self._update(
                part, old=None if old is None else old[rows], ref=None if ref is None else ref[rows], clock=clock
            )
            reports += [report.metrics] if report else []
            if difference is None and logprobs is not None:
                # The first update's forward pass ran under the policy that sampled.
                difference = logprob_difference(part, logprobs)
        return summarise(reports, difference)

    def _update(
        self,
        samples: Sequence[TrainSample],
        *,
        old: Sequence[Float32Array] | None,
        ref: Sequence[Float32Array] | None,
        clock: StageClock,
    ) -> tuple[UpdateReport | None, list[Float32Array] | None]:
        batches = build_update(
            samples, self._algorithm, max_tokens=self._max_tokens, ranks=self._group.data_parallel_size
        )
        if batches is None:
            return None, None
        attach(batches, old=old, ref=ref)
        with clock.stage("update"):
            reports = self._group.update(batches)
        micro_batches = [m for batch in batches for m in batch.micro_batches]
        values = [v for report in reports for v in report.logprobs]
        return reports[0], unpack(micro_batches, values, samples)


class NoTrainer:
    """The training half of a run that trains nothing."""

    def step(self, samples: Sequence[TrainSample], clock: StageClock) -> dict[str, float]:
        """No update."""
        return summarise([], None)


def logprob_difference(samples: Sequence[TrainSample], logprobs: Sequence[Float32Array]) -> float:
    """Mean over samples of the masked mean of |trainer - rollout|; both under the policy that sampled."""
    means = [
        float(np.mean(np.abs(ours - s.sample.rollout_logprobs)[s.loss_mask]))
        for s, ours in zip(samples, logprobs, strict=True)
        if s.loss_mask.any()
    ]
    return float(np.mean(means)) if means else 0.0


def summarise(reports: Sequence[Mapping[str, float]], difference: float | None) -> dict[str, float]:
    """`train/*` metrics of a step from those of its updates."""
    metrics = {"train/updates": float(len(reports))}
    if difference is not None:
        metrics["train/train_rollout_logprob_abs_diff"] = difference
    for name in reports[0] if reports else ():
        values = [report[name] for report in reports]
        metrics[f"train/{name}"] = values[-1] if name == "lr" else float(np.mean(values))
    return metrics
