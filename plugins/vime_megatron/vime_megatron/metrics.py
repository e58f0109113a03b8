"""Metrics of an update: sums over micro-batches and ranks first, one division last."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import distributed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vime_core.plugins.interfaces import LossOutput


def reduce_metrics(
    outputs: Sequence[LossOutput], denominator: float, group: distributed.ProcessGroup, device: torch.device
) -> dict[str, float]:
    """Means over all micro-batches of all data-parallel ranks; the same on each of them.

    Args:
        outputs: one a micro-batch of this rank, at least one, all with the same metrics.
        denominator: the declared denominator of the loss; divides the loss and metrics without a count.
        group: data-parallel ranks.
        device: where `group` communicates.

    Returns:
        `loss` and the metrics of the algorithm; one whose count is 0 is 0.
    """
    names = list(outputs[0].metrics)
    sums = torch.zeros(1 + 2 * len(names), dtype=torch.float64, device=device)
    for output in outputs:
        sums[0] += output.loss
        for index, name in enumerate(names):
            metric = output.metrics[name]
            sums[1 + 2 * index] += metric.total
            sums[2 + 2 * index] += 0.0 if metric.count is None else metric.count
    distributed.all_reduce(sums, group=group)
    values = sums.tolist()
    metrics = {"loss": values[0] / denominator}
    for index, name in enumerate(names):
        total, counted = values[1 + 2 * index : 3 + 2 * index]
        count = denominator if outputs[0].metrics[name].count is None else counted
        metrics[name] = total / count if count else 0.0
    return metrics
