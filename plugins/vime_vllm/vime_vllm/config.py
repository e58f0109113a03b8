"""Settings of the rollout backend `vllm` and of its sync strategies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vime_core.config.schema import RolloutConfig, SyncConfig, option
from vime_core.errors import ConfigError

if TYPE_CHECKING:
    from vime_core.plugins.interfaces import Accelerator

ROUTER_POLICIES = ("round_robin", "random", "cache_aware", "consistent_hash")


@dataclass(kw_only=True)
class VllmConfig(RolloutConfig):
    """vLLM engines behind vllm-router."""

    name: str = "vllm"
    dtype: str | None = option(None, choices=("float32", "bfloat16", "float16"))
    """Type of the engines' weights and activations; the trainer's when null."""
    max_num_seqs: int = option(256, low=1)
    """Most sequences that one engine generates at one time; more wait in its queue."""
    kv_cache_mib: int | None = option(None, low=1)
    """Mebibytes of one engine's KV cache; when null, room for `max_num_seqs` longest sequences, as far as that fits."""
    gpu_memory_utilization: float | None = option(None, above=0, high=1)
    """Share of a device's memory that an engine may use, its KV cache included; instead of `kv_cache_mib`."""
    sleep: bool | None = None
    """Whether engines free their weights and KV cache while the trainer computes on the same devices; when null, where
    the accelerator can."""
    enforce_eager: bool | None = None
    """Run without compiling the model, which starts faster; when null, on the CPU only."""
    prefix_caching: bool = True
    """Compute a prompt that several samples share once; the cache is emptied by every weight push."""
    router_policy: str = option("round_robin", choices=ROUTER_POLICIES)
    """How the router spreads requests; `cache_aware` and `consistent_hash` keep like requests together."""


def check_sleep(config: VllmConfig, accelerator: Accelerator) -> None:
    """Check that engines can sleep when they are to.

    Raises:
        ConfigError: when the accelerator cannot give their memory up.
    """
    if config.sleep and not accelerator.can_sleep:
        raise ConfigError(f"rollout.sleep=true: engines cannot sleep with accelerator={accelerator.name}; leave it out")


@dataclass(kw_only=True)
class ShmConfig(SyncConfig):
    """Weights through POSIX shared memory."""

    name: str = "shm"


@dataclass(kw_only=True)
class IpcConfig(SyncConfig):
    """Weights through device memory."""

    name: str = "ipc"


@dataclass(kw_only=True)
class NcclConfig(SyncConfig):
    """Weights through a process group."""

    name: str = "nccl"
