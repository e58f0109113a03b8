"""For plugin authors: conformance suites and fakes.

A plugin's `tests/test_conformance.py` is an empty class for each component:

    from vime_core.testing import RewardSuite

    class TestConformance(RewardSuite):
        entry = "acme"
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vime_core.testing.suites import (
        SUITES,
        AcceleratorSuite,
        AlgorithmSuite,
        FilterSuite,
        ModelFamilySuite,
        ObserverSuite,
        PromptSourceSuite,
        RewardSuite,
        RolloutBackendSuite,
        RolloutFunctionSuite,
        SyncStrategySuite,
        TrackerSuite,
        TrainBackendSuite,
    )

__all__ = [
    "SUITES",
    "AcceleratorSuite",
    "AlgorithmSuite",
    "FilterSuite",
    "ModelFamilySuite",
    "ObserverSuite",
    "PromptSourceSuite",
    "RewardSuite",
    "RolloutBackendSuite",
    "RolloutFunctionSuite",
    "SyncStrategySuite",
    "TrackerSuite",
    "TrainBackendSuite",
]


def __getattr__(name: str) -> Any:
    """Import the suites when one is asked for: pytest loads this package in every project where vime is installed."""
    if name in __all__:
        return getattr(import_module("vime_core.testing.suites"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
