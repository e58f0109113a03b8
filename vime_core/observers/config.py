"""Settings of the observers in core."""

from __future__ import annotations

from dataclasses import dataclass

from vime_core.config.schema import ComponentConfig, option


@dataclass(kw_only=True)
class StopWhenConfig(ComponentConfig):
    """End the run once a metric is past a threshold; by default when every sample gets the full reward."""

    name: str = "stop_when"
    """The entry that is used."""
    metric: str = "rollout/raw_reward"
    """Key of metrics.jsonl."""
    threshold: float = 1.0
    """Value that ends the run."""
    direction: str = option("above", choices=("above", "below"))
    """`above`: the metric is at least the threshold; `below`: at most."""
    patience: int = option(1, low=1)
    """So many steps in a row that have the metric."""
