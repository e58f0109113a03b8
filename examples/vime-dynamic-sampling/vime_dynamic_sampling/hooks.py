"""Registration only; the filter is imported when it is chosen."""

from __future__ import annotations

from vime_core import FilterEntry, hookimpl
from vime_dynamic_sampling.config import DynamicSamplingConfig


@hookimpl
def vime_filters() -> list[FilterEntry]:
    """The filter `dynamic_sampling`."""
    return [
        FilterEntry(
            name="dynamic_sampling",
            summary="drops groups in which no sample is better than another",
            config=DynamicSamplingConfig,
            factory="vime_dynamic_sampling.filter:DynamicSampling",
        )
    ]
