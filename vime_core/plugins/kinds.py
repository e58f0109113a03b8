"""Which entries each hook returns, and which settings the entries of a kind must bring."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vime_core.config import schema
from vime_core.errors import PluginError
from vime_core.plugins import entries

if TYPE_CHECKING:
    from collections.abc import Mapping

HOOK_ENTRIES: Mapping[str, type[entries.Entry]] = {
    "vime_algorithms": entries.AlgorithmEntry,
    "vime_models": entries.ModelEntry,
    "vime_train_backends": entries.TrainBackendEntry,
    "vime_rollout_backends": entries.RolloutBackendEntry,
    "vime_rollout_functions": entries.RolloutFunctionEntry,
    "vime_prompt_sources": entries.PromptSourceEntry,
    "vime_filters": entries.FilterEntry,
    "vime_rewards": entries.RewardEntry,
    "vime_sync_strategies": entries.SyncStrategyEntry,
    "vime_accelerators": entries.AcceleratorEntry,
    "vime_trackers": entries.TrackerEntry,
    "vime_observers": entries.ObserverEntry,
}
"""Hook name -> class of the entries it returns."""

ENTRY_TYPES: tuple[type[entries.Entry], ...] = tuple(HOOK_ENTRIES.values())

AUTO = "auto"
"""Name that stands for "the one that fits"; no entry may have it."""

_BASES: Mapping[str, type] = {
    "algorithm": schema.AlgorithmConfig,
    "model": schema.ModelConfig,
    "data": schema.DataConfig,
    "train": schema.TrainConfig,
    "rollout": schema.RolloutConfig,
    "sync": schema.SyncConfig,
    "accelerator": schema.AcceleratorConfig,
    "reward": schema.RewardConfig,
}


def config_base(entry_type: type[entries.Entry]) -> type:
    """The class that the settings of such entries derive from: the keys that the loop reads."""
    return _BASES.get(entry_type.group, schema.ComponentConfig)


def entry_type_of(kind: str) -> type[entries.Entry]:
    """The entry class of a kind, given by its name (`training backend`) or by its configuration key (`train`).

    Raises:
        PluginError: when there is no such kind.
    """
    for entry_type in ENTRY_TYPES:
        if kind in (entry_type.kind, entry_type.group):
            return entry_type
    known = ", ".join(entry_type.group for entry_type in ENTRY_TYPES)
    raise PluginError(f"there is no kind of component {kind!r}; there are {known}")
