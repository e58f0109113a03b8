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
        from vime_core import AlgorithmConfig, AlgorithmEntry, hookimpl


        @hookimpl
        def vime_algorithms():
            return [
                AlgorithmEntry(
                    name="reinforce",
                    summary="the score is the advantage",
                    config=AlgorithmConfig,
                    factory="vime_acme.parts:Reinforce",
                )
            ]
    """


@hookspec
def vime_models() -> Iterable[entries.ModelEntry]:  # type: ignore[empty-body]
    """Model families: Hugging Face configuration to geometry, and the tensor map.

    Called once, when plugins are loaded. Returns `ModelEntry` objects; factory `ModelFamily()`.

    Example:
        from vime_core import ModelConfig, ModelEntry, hookimpl


        @hookimpl
        def vime_models():
            return [
                ModelEntry(
                    name="acme",
                    summary="models of Acme",
                    config=ModelConfig,
                    factory="vime_acme.parts:Acme",
                )
            ]
    """


@hookspec
def vime_train_backends() -> Iterable[entries.TrainBackendEntry]:  # type: ignore[empty-body]
    """Training backends.

    Called once, when plugins are loaded. Returns `TrainBackendEntry` objects; factory `TrainBackend(context)`.

    Example:
        from vime_core import TrainBackendEntry, TrainConfig, hookimpl


        @hookimpl
        def vime_train_backends():
            return [
                TrainBackendEntry(
                    name="acme",
                    summary="training with Acme",
                    config=TrainConfig,
                    factory="vime_acme.parts:Backend",
                )
            ]
    """


@hookspec
def vime_rollout_backends() -> Iterable[entries.RolloutBackendEntry]:  # type: ignore[empty-body]
    """Rollout backends: servers that generate.

    Called once, when plugins are loaded. Returns `RolloutBackendEntry` objects; factory `RolloutBackend(context)`.

    Example:
        from vime_core import RolloutBackendEntry, RolloutConfig, hookimpl


        @hookimpl
        def vime_rollout_backends():
            return [
                RolloutBackendEntry(
                    name="acme",
                    summary="servers of Acme",
                    config=RolloutConfig,
                    factory="vime_acme.parts:Backend",
                )
            ]
    """


@hookspec
def vime_rollout_functions() -> Iterable[entries.RolloutFunctionEntry]:  # type: ignore[empty-body]
    """Rollout functions: how one prompt becomes samples (turns, tools, masks).

    Called once, when plugins are loaded. Returns `RolloutFunctionEntry` objects; factory `RolloutFunction(config)`.

    Example:
        from vime_core import ComponentConfig, RolloutFunctionEntry, hookimpl


        @hookimpl
        def vime_rollout_functions():
            return [
                RolloutFunctionEntry(
                    name="two_turns",
                    summary="a second try after a hint",
                    config=ComponentConfig,
                    factory="vime_acme.parts:TwoTurns",
                )
            ]
    """


@hookspec
def vime_prompt_sources() -> Iterable[entries.PromptSourceEntry]:  # type: ignore[empty-body]
    """Prompt sources: an ordered, resumable stream of prompts.

    Called once, when plugins are loaded. Returns `PromptSourceEntry` objects; factory
    `PromptSource(config, tokenizer, seed, max_prompt_tokens)`.

    Example:
        from vime_core import DataConfig, PromptSourceEntry, hookimpl


        @hookimpl
        def vime_prompt_sources():
            return [
                PromptSourceEntry(
                    name="acme",
                    summary="prompts from a database",
                    config=DataConfig,
                    factory="vime_acme.parts:Source",
                )
            ]
    """


@hookspec
def vime_filters() -> Iterable[entries.FilterEntry]:  # type: ignore[empty-body]
    """Filters: which scored groups are trained on.

    Called once, when plugins are loaded. Returns `FilterEntry` objects; factory `Filter(config)`.

    Example:
        from vime_core import ComponentConfig, FilterEntry, hookimpl


        @hookimpl
        def vime_filters():
            return [
                FilterEntry(
                    name="informative",
                    summary="groups with different scores",
                    config=ComponentConfig,
                    factory="vime_acme.parts:Informative",
                )
            ]
    """


@hookspec
def vime_rewards() -> Iterable[entries.RewardEntry]:  # type: ignore[empty-body]
    """Rewards: a sample and its prompt to a verdict.

    Called once, when plugins are loaded. Returns `RewardEntry` objects; factory `Reward(config)`.

    Example:
        from vime_core import RewardConfig, RewardEntry, hookimpl


        @hookimpl
        def vime_rewards():
            return [
                RewardEntry(
                    name="exact",
                    summary="the answer is the label",
                    config=RewardConfig,
                    factory="vime_acme.parts:Exact",
                )
            ]
    """


@hookspec
def vime_sync_strategies() -> Iterable[entries.SyncStrategyEntry]:  # type: ignore[empty-body]
    """Sync strategies: weights from the trainer into the engines.

    Called once, when plugins are loaded. Returns `SyncStrategyEntry` objects; factory
    `SyncStrategy(config, rank, world_size)`.

    Example:
        from vime_core import SyncConfig, SyncStrategyEntry, hookimpl


        @hookimpl
        def vime_sync_strategies():
            return [
                SyncStrategyEntry(
                    name="acme",
                    summary="weights over the network",
                    config=SyncConfig,
                    factory="vime_acme.parts:Sync",
                    rollout_backends=frozenset({"acme"}),
                )
            ]
    """


@hookspec
def vime_accelerators() -> Iterable[entries.AcceleratorEntry]:  # type: ignore[empty-body]
    """Accelerators: devices, visible-device environments, torch backends.

    Called once, when plugins are loaded. Returns `AcceleratorEntry` objects; factory `Accelerator(config)`.

    Example:
        from vime_core import AcceleratorConfig, AcceleratorEntry, hookimpl


        @hookimpl
        def vime_accelerators():
            return [
                AcceleratorEntry(
                    name="acme",
                    summary="chips of Acme",
                    config=AcceleratorConfig,
                    factory="vime_acme.parts:Chips",
                    requires=("torch_acme",),
                )
            ]
    """


@hookspec
def vime_trackers() -> Iterable[entries.TrackerEntry]:  # type: ignore[empty-body]
    """Trackers: where metrics go besides `metrics.jsonl`. One that fails is named and switched off.

    Called once, when plugins are loaded. Returns `TrackerEntry` objects; factory `Tracker(config, run_folder)`.

    Example:
        from vime_core import ComponentConfig, TrackerEntry, hookimpl


        @hookimpl
        def vime_trackers():
            return [
                TrackerEntry(
                    name="acme",
                    summary="metrics to Acme",
                    config=ComponentConfig,
                    factory="vime_acme.parts:Tracker",
                )
            ]
    """


@hookspec
def vime_observers() -> Iterable[entries.ObserverEntry]:  # type: ignore[empty-body]
    """Observers: told of each stage of a run, which they may end. One that fails stops the run.

    Called once, when plugins are loaded. Returns `ObserverEntry` objects; factory `Observer(config)`.

    Example:
        from vime_core import ComponentConfig, ObserverEntry, hookimpl


        @hookimpl
        def vime_observers():
            return [
                ObserverEntry(
                    name="stop_early",
                    summary="ends a run that no longer learns",
                    config=ComponentConfig,
                    factory="vime_acme.parts:StopEarly",
                )
            ]
    """
