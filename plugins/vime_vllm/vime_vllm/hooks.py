"""Registration only; implementations are imported when chosen."""

from __future__ import annotations

from vime_core import hookimpl
from vime_core.plugins.entries import RolloutBackendEntry, SyncStrategyEntry
from vime_vllm.config import IpcConfig, NcclConfig, ShmConfig, VllmConfig, check_sleep


@hookimpl
def vime_rollout_backends() -> list[RolloutBackendEntry]:
    """The rollout backend `vllm`."""
    return [
        RolloutBackendEntry(
            name="vllm",
            summary="vLLM servers behind vllm-router; token ids in and out",
            config=VllmConfig,
            factory="vime_vllm.backend:VllmBackend",
            requires=("vllm", "vllm_router"),
            doctor="vime_vllm.doctor:findings",
            check=check_sleep,
        )
    ]


@hookimpl
def vime_sync_strategies() -> list[SyncStrategyEntry]:
    """The sync strategies `shm`, `ipc` and `nccl`."""
    return [
        SyncStrategyEntry(
            name="shm",
            summary="Weights through POSIX shared memory; trainer and engines on one node",
            config=ShmConfig,
            factory="vime_vllm.sync.shm:ShmSync",
            requires=("vllm",),
            rollout_backends=frozenset({"vllm"}),
            shared_memory=True,
        ),
        SyncStrategyEntry(
            name="ipc",
            summary="Weights through memory of NVIDIA GPUs that trainer and engines share",
            config=IpcConfig,
            factory="vime_vllm.sync.ipc:IpcSync",
            requires=("vllm",),
            rollout_backends=frozenset({"vllm"}),
            accelerators=frozenset({"cuda"}),
            placements=frozenset({"colocated"}),
            trainer_buffers=2,
            engine_buffers=1,
            priority=10,
        ),
        SyncStrategyEntry(
            name="nccl",
            summary="Weights broadcast to engines with devices of their own: NCCL, RCCL on ROCm, gloo on the CPU",
            config=NcclConfig,
            factory="vime_vllm.sync.nccl:NcclSync",
            requires=("vllm",),
            rollout_backends=frozenset({"vllm"}),
            placements=frozenset({"disjoint"}),
            reason="no two ranks of an NCCL group can be on one device",
            trainer_buffers=2,
            engine_buffers=2,
            # Never by itself: on one host `shm` needs no group that lets in whoever comes.
            priority=-1,
        ),
    ]
