"""Learning rates, as a function of the number of optimizer updates done."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vime_core.config.schema import TrainConfig


def learning_rate(update: int, total_updates: int, config: TrainConfig) -> float:
    """The rate of one optimizer update.

    During the w warm-up updates it is lr * (update + 1) / w. After them x runs from 0 at the first update to 1 at
    the last one of the run, and the rate is

        constant: lr
        linear:   lr_min + (lr - lr_min) * (1 - x)
        cosine:   lr_min + (lr - lr_min) * (1 + cos(pi * x)) / 2

    Args:
        update: updates done before this one, from 0.
        total_updates: updates of the whole run; past it the last rate stays.
        config: `lr`, `lr_min`, `lr_schedule` and `lr_warmup_steps` are read.
    """
    warmup = config.lr_warmup_steps
    if update < warmup:
        return config.lr * (update + 1) / warmup
    if config.lr_schedule == "constant":
        return config.lr
    span = total_updates - 1 - warmup
    progress = min((update - warmup) / span, 1.0) if span > 0 else 0.0
    remaining = 1.0 - progress if config.lr_schedule == "linear" else (1.0 + math.cos(math.pi * progress)) / 2.0
    return config.lr_min + (config.lr - config.lr_min) * remaining
