"""What each kind of component does. Shapes follow the legend of `vime_core.types`."""

from vime_core.models.family import ModelFamily
from vime_core.plugins.interfaces.algorithm import Algorithm, LossInputs, LossOutput, Metric, Needs
from vime_core.plugins.interfaces.data import Filter, PromptSource, Reward
from vime_core.plugins.interfaces.devices import Accelerator, SyncStrategy
from vime_core.plugins.interfaces.rollout import (
    Generator,
    RolloutBackend,
    RolloutContext,
    RolloutFunction,
    RolloutRecord,
    RolloutTools,
)
from vime_core.plugins.interfaces.training import CheckpointConverter, TrainBackend, TrainContext
from vime_core.plugins.interfaces.watching import Observer, Tracker

__all__ = [
    "Accelerator",
    "Algorithm",
    "CheckpointConverter",
    "Filter",
    "Generator",
    "LossInputs",
    "LossOutput",
    "Metric",
    "ModelFamily",
    "Needs",
    "Observer",
    "PromptSource",
    "Reward",
    "RolloutBackend",
    "RolloutContext",
    "RolloutFunction",
    "RolloutRecord",
    "RolloutTools",
    "SyncStrategy",
    "Tracker",
    "TrainBackend",
    "TrainContext",
]
