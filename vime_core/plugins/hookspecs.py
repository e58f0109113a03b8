"""The hooks of vime: one a kind of component, each returning entries. See `vime_core.plugins.entries`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from collections.abc import Iterable

    from vime_core.plugins import entries

PROJECT = "vime"
"""pluggy project name and entry-point group."""

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def vime_algorithms() -> Iterable[entries.AlgorithmEntry]:  # type: ignore[empty-body]
    """Algorithms: scored groups to advantages, and the loss.

    Called once, when plugins are loaded. Returns `AlgorithmEntry` objects; factory `Algorithm(config)`.

    Example:
        @hookimpl
        def vime_algorithms():
            return [AlgorithmEntry(name="grpo", summary="...", config=GRPOConfig, factory="vime_grpo.grpo:GRPO")]
    """


@hookspec
def vime_models() -> Iterable[entries.ModelEntry]:  # type: ignore[empty-body]
    """Model families: Hugging Face configuration to geometry, and the tensor map.

    Called once, when plugins are loaded. Returns `ModelEntry` objects; factory `ModelFamily()`.
    """


@hookspec
def vime_train_backends() -> Iterable[entries.TrainBackendEntry]:  # type: ignore[empty-body]
    """Training backends.

    Called once, when plugins are loaded. Returns `TrainBackendEntry` objects; factory `TrainBackend(context)`.
    """


@hookspec
def vime_rollout_backends() -> Iterable[entries.RolloutBackendEntry]:  # type: ignore[empty-body]
    """Rollout backends: servers that generate.

    Called once, when plugins are loaded. Returns `RolloutBackendEntry` objects; factory `RolloutBackend(context)`.
    """


@hookspec
def vime_rollout_functions() -> Iterable[entries.RolloutFunctionEntry]:  # type: ignore[empty-body]
    """Rollout functions: how one prompt becomes samples (turns, tools, masks).

    Called once, when plugins are loaded. Returns `RolloutFunctionEntry` objects; factory `RolloutFunction(config)`.
    """


@hookspec
def vime_prompt_sources() -> Iterable[entries.PromptSourceEntry]:  # type: ignore[empty-body]
    """Prompt sources: an ordered, resumable stream of prompts.

    Called once, when plugins are loaded. Returns `PromptSourceEntry` objects; factory
    `PromptSource(config, tokenizer, seed, max_prompt_tokens)`.
    """


@hookspec
def vime_filters() -> Iterable[entries.FilterEntry]:  # type: ignore[empty-body]
    """Filters: which scored groups are trained on.

    Called once, when plugins are loaded. Returns `FilterEntry` objects; factory `Filter(config)`.
    """


@hookspec
def vime_rewards() -> Iterable[entries.RewardEntry]:  # type: ignore[empty-body]
    """Rewards: a sample and its prompt to a verdict.

    Called once, when plugins are loaded. Returns `RewardEntry` objects; factory `Reward(config)`.
    """


@hookspec
def vime_sync_strategies() -> Iterable[entries.SyncStrategyEntry]:  # type: ignore[empty-body]
    """Sync strategies: weights from the trainer into the engines.

    Called once, when plugins are loaded. Returns `SyncStrategyEntry` objects; factory
    `SyncStrategy(config, rank, world_size)`.
    """


@hookspec
def vime_accelerators() -> Iterable[entries.AcceleratorEntry]:  # type: ignore[empty-body]
    """Accelerators: devices, visible-device environments, torch backends.

    Called once, when plugins are loaded. Returns `AcceleratorEntry` objects; factory `Accelerator(config)`.
    """


@hookspec
def vime_trackers() -> Iterable[entries.TrackerEntry]:  # type: ignore[empty-body]
    """Trackers: where metrics go besides `metrics.jsonl`. One that fails is named and switched off.

    Called once, when plugins are loaded. Returns `TrackerEntry` objects; factory `Tracker(config, run_folder)`.
    """


@hookspec
def vime_observers() -> Iterable[entries.ObserverEntry]:  # type: ignore[empty-body]
    """Observers: told of each stage of a run. One that fails stops the run.

    Called once, when plugins are loaded. Returns `ObserverEntry` objects; factory `Observer(config)`.
    """
