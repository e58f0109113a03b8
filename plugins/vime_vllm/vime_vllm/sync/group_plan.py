"""Who is who in the process group of the trainer's sending rank and all workers of all engines."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """Ranks of the group: 0 is the trainer's, then come the workers, engine by engine."""

    size: int
    engines: Mapping[str, range]
    """Engine -> the ranks of its workers, in their order within the engine."""


def plan_group(workers: Mapping[str, int]) -> GroupPlan:
    """Count the ranks.

    Args:
        workers: engine -> how many workers it has (tensor times pipeline parallelism), each at least 1.

    Raises:
        ValueError: when there is no engine, or one without workers.
    """
    if not workers or min(workers.values()) < 1:
        raise ValueError(f"a weight group needs engines with a worker each at least, not {dict(workers)}")
    ends = list(accumulate(workers.values(), initial=1))
    return GroupPlan(ends[-1], {name: range(ends[i], ends[i + 1]) for i, name in enumerate(workers)})
