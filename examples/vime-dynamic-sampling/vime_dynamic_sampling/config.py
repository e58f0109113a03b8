"""Settings of the filter."""

from __future__ import annotations

from dataclasses import dataclass

from vime_core import ComponentConfig, option


@dataclass(kw_only=True)
class DynamicSamplingConfig(ComponentConfig):
    """Drops groups in which no sample is better than another, as DAPO does."""

    name: str = "dynamic_sampling"
    """The entry that is used."""
    by: str = option("score", choices=("score", "correct"))
    """What must differ: `score`, the combined score; `correct`, whether the verdict is `correct` - the paper's own
    condition, which shaping rewards do not change."""
