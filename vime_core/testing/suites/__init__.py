"""The conformance suites, one a kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vime_core.testing.suites.accelerator import AcceleratorSuite
from vime_core.testing.suites.algorithm import AlgorithmSuite
from vime_core.testing.suites.filter import FilterSuite
from vime_core.testing.suites.model import ModelFamilySuite
from vime_core.testing.suites.observer import ObserverSuite
from vime_core.testing.suites.prompts import PromptSourceSuite
from vime_core.testing.suites.reward import RewardSuite
from vime_core.testing.suites.rollout import RolloutBackendSuite
from vime_core.testing.suites.rollout_function import RolloutFunctionSuite
from vime_core.testing.suites.sync import SyncStrategySuite
from vime_core.testing.suites.tracker import TrackerSuite
from vime_core.testing.suites.train import TrainBackendSuite

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vime_core.testing.suite import ComponentSuite

SUITES: Mapping[str, type[ComponentSuite]] = {
    suite.group: suite
    for suite in (
        AlgorithmSuite,
        ModelFamilySuite,
        TrainBackendSuite,
        RolloutBackendSuite,
        RolloutFunctionSuite,
        PromptSourceSuite,
        FilterSuite,
        RewardSuite,
        SyncStrategySuite,
        AcceleratorSuite,
        TrackerSuite,
        ObserverSuite,
    )
}
"""Configuration key of a kind -> its suite."""

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
