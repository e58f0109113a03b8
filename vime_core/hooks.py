"""Core's own components, registered like those of any plugin; implementations are imported when chosen."""

from __future__ import annotations

from vime_core import hookimpl
from vime_core.accelerators import cuda
from vime_core.config.schema import AcceleratorConfig, SyncConfig, TrainConfig
from vime_core.data.config import FilesConfig
from vime_core.observers.config import StopWhenConfig
from vime_core.plugins.entries import (
    AcceleratorEntry,
    ObserverEntry,
    PromptSourceEntry,
    RewardEntry,
    RolloutBackendEntry,
    RolloutFunctionEntry,
    SyncStrategyEntry,
    TrackerEntry,
    TrainBackendEntry,
)
from vime_core.rewards.length_config import LengthPenaltyConfig
from vime_core.rollout.config import SingleTurnConfig
from vime_core.run.config import ReplayConfig
from vime_core.trackers.config import TensorBoardConfig, WandbConfig


@hookimpl
def vime_accelerators() -> list[AcceleratorEntry]:
    """The CPU, which is always there, and NVIDIA GPUs."""
    return [
        AcceleratorEntry(
            name="cpu",
            summary="CPU cores; torch.distributed over gloo",
            config=AcceleratorConfig,
            factory="vime_core.accelerators.cpu:CpuAccelerator",
        ),
        AcceleratorEntry(
            name="cuda",
            summary="NVIDIA GPUs; torch.distributed over NCCL",
            config=AcceleratorConfig,
            factory="vime_core.accelerators.cuda:CudaAccelerator",
            requires=("torch",),
            probe=cuda.probe,
            priority=10,
        ),
    ]


@hookimpl
def vime_prompt_sources() -> list[PromptSourceEntry]:
    """Prompts from files."""
    return [
        PromptSourceEntry(
            name="files",
            summary="parquet and jsonl files, in the DAPO schema or with keys of your choice",
            config=FilesConfig,
            factory="vime_core.data.files:FileSource",
        )
    ]


@hookimpl
def vime_train_backends() -> list[TrainBackendEntry]:
    """No training."""
    return [
        TrainBackendEntry(
            name="none",
            summary="no training: engines hold the weights of the model folder, rollouts are recorded",
            config=TrainConfig,
            factory="vime_core.cluster.frozen:FrozenPolicy",
            requires=("torch", "safetensors"),
            trains=False,
        )
    ]


@hookimpl
def vime_rollout_backends() -> list[RolloutBackendEntry]:
    """No engines."""
    return [
        RolloutBackendEntry(
            name="replay",
            summary="the recorded rollouts of another run, step by step, without engines",
            config=ReplayConfig,
            factory="vime_core.run.replay:Replay",
            engines=False,
        )
    ]


@hookimpl
def vime_sync_strategies() -> list[SyncStrategyEntry]:
    """No weight pushes."""
    return [
        SyncStrategyEntry(
            name="none",
            summary="no weight pushes, where there are no engines",
            config=SyncConfig,
            factory="vime_core.cluster.no_sync:NoSync",
            engines=False,
        )
    ]


@hookimpl
def vime_rollout_functions() -> list[RolloutFunctionEntry]:
    """One turn."""
    return [
        RolloutFunctionEntry(
            name="single_turn",
            summary="one response to each prompt, every token of it trained on",
            config=SingleTurnConfig,
            factory="vime_core.rollout.single_turn:SingleTurn",
        )
    ]


@hookimpl
def vime_rewards() -> list[RewardEntry]:
    """Length."""
    return [
        RewardEntry(
            name="length_penalty",
            summary="DAPO's soft overlong punishment: from 0 down to -1 before the longest response",
            config=LengthPenaltyConfig,
            factory="vime_core.rewards.length:LengthPenalty",
        )
    ]


@hookimpl
def vime_observers() -> list[ObserverEntry]:
    """Early stopping."""
    return [
        ObserverEntry(
            name="stop_when",
            summary="ends the run once a metric is past a threshold",
            config=StopWhenConfig,
            factory="vime_core.observers.stop_when:StopWhen",
        )
    ]


@hookimpl
def vime_trackers() -> list[TrackerEntry]:
    """TensorBoard and Weights & Biases."""
    return [
        TrackerEntry(
            name="tensorboard",
            summary="TensorBoard event files in the run folder (vime-core[tensorboard])",
            config=TensorBoardConfig,
            factory="vime_core.trackers.tensorboard:TensorBoardTracker",
            requires=("tensorboard",),
        ),
        TrackerEntry(
            name="wandb",
            summary="Weights & Biases, offline by default (vime-core[wandb])",
            config=WandbConfig,
            factory="vime_core.trackers.wandb:WandbTracker",
            requires=("wandb",),
        ),
    ]
