"""Command lines and environments of engines and router: plain functions of a run's settings."""

from __future__ import annotations

import json
import math
import os
import sys
from typing import TYPE_CHECKING

from vime_core.errors import ResourceError
from vime_vllm.middleware import KEY_VARIABLE
from vime_vllm.ports import HOST, UNREACHABLE
from vime_vllm.receiver import transfer_engine
from vime_vllm.server import BINDING_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vime_core.models.geometry import ModelGeometry
    from vime_core.plugins.interfaces import RolloutContext
    from vime_vllm.config import VllmConfig

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
BLOCK_TOKENS = 128
"""The largest default size of a KV cache block; a sequence holds whole blocks."""
KV_CACHE_SHARE = 0.5
"""Of the free memory, for the KV caches of all engines together, when their size is not set."""
PREFILL_TOKENS = 4096
"""Least tokens of one scheduling step."""
IDLE_CONNECTION_S = 3600
"""An engine that closed idle connections sooner than its clients would now and then refuse a request."""


def engine_command(context: RolloutContext, index: int) -> list[str]:
    """The server of engine `index`, but for its port.

    Prefills are never split: on the CPU a seeded request whose prefill is split ends the engine (vLLM 0.32.0,
    gpu_model_runner.py:3502, "CPU Generator does not use offset"). That needs a step that holds the longest sequence.
    `--generation-config vllm` keeps the sampling defaults of the model folder out of the samples.
    """
    config: VllmConfig = context.config
    longest = max_model_len(config)
    arguments = {
        "model": str(context.model_path),
        "host": context.engine_places[index].address,
        "dtype": config.dtype or context.dtype,
        "seed": str(context.seed + index),
        "load-format": "dummy",
        "generation-config": "vllm",
        "logprobs-mode": "processed_logprobs",
        "max-model-len": str(longest),
        "max-num-seqs": str(config.max_num_seqs),
        "max-num-batched-tokens": str(max(longest, PREFILL_TOKENS, config.max_num_seqs)),
        "tensor-parallel-size": str(config.tensor_parallel_size),
        "distributed-executor-backend": "mp",
        "weight-transfer-config": json.dumps({"backend": transfer_engine(context.sync)}),
        "middleware": "vime_vllm.middleware.RequireKey",
        **_memory(context),
    }
    flags = [
        "enable-scale-out",
        "tokens-only",
        "no-enable-chunked-prefill",
        "enable-prefix-caching" if config.prefix_caching else "no-enable-prefix-caching",
        "disable-uvicorn-access-log",
    ]
    if _is_eager(context):
        flags.append("enforce-eager")
    if engines_sleep(context):
        flags.append("enable-sleep-mode")
    options = [text for name, value in arguments.items() for text in (f"--{name}", value)]
    return [sys.executable, "-m", "vime_vllm.server", *options, *(f"--{flag}" for flag in flags)]


def engine_environment(context: RolloutContext) -> dict[str, str]:
    """What an engine's server finds in its environment besides the accelerator's variables."""
    environment = {
        KEY_VARIABLE: context.run_key,
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": str(IDLE_CONNECTION_S),
        "VLLM_HOST_IP": HOST,
        # Whatever the user's shell says: with it, engines would unpickle what requests bring.
        "VLLM_ALLOW_INSECURE_SERIALIZATION": "0",
        "HF_HUB_OFFLINE": "1",
        BINDING_VARIABLE: "nobind",
    }
    if _is_eager(context):
        # vLLM also compiles small helpers (the rank of a log-prob) whatever --enforce-eager says: up to 25 s at the
        # first request.
        environment["TORCHDYNAMO_DISABLE"] = "1"
    return environment


def engines_sleep(context: RolloutContext) -> bool:
    """Whether engines free device memory while the trainer computes."""
    config: VllmConfig = context.config
    return context.accelerator.can_sleep if config.sleep is None else config.sleep


def router_command(
    config: VllmConfig, engine_urls: Sequence[str], *, port: int, metrics_port: int, deadline_s: float
) -> list[str]:
    """The router.

    It gets no key: it asks an engine about each key that it has not seen, and passes on what its clients send. It
    neither retries nor takes engines out: an engine that fails is an error of the run. Its metrics cannot be switched
    off and ask for no key, so they listen where no connection can arrive.
    """
    arguments = {
        "host": HOST,
        "port": str(port),
        "prometheus-host": UNREACHABLE,
        "prometheus-port": str(metrics_port),
        "policy": config.router_policy,
        "worker-startup-check-interval": "1",
        "request-timeout-secs": str(math.ceil(deadline_s)),
        "cors-allowed-origins": f"http://{HOST}:{port}",
        "log-level": "warning",
    }
    options = [text for name, value in arguments.items() for text in (f"--{name}", value)]
    flags = ["--disable-retries", "--disable-circuit-breaker"]
    return [sys.executable, "-m", "vime_vllm.router_server", *options, *flags, "--worker-urls", *engine_urls]


def router_environment() -> dict[str, str]:
    """The driver's, without Ray's secrets and without proxies, which would see the run's key."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("RAY_") and not name.lower().endswith("_proxy")
    }


def max_model_len(config: VllmConfig) -> int:
    """Tokens of the longest sequence."""
    return config.max_prompt_tokens + config.max_response_tokens


def kv_cache_bytes(config: VllmConfig, geometry: ModelGeometry, dtype: str, free_bytes: int) -> int:
    """Size of one engine's KV cache.

    Keys and values of every layer for whole blocks of `max_num_seqs` longest sequences, on each of its devices; less
    when the free memory is short, in which case vLLM lets sequences wait.

    Args:
        config: of the engines.
        geometry: of the model.
        dtype: of the cache.
        free_bytes: device memory that all engines share.

    Raises:
        ResourceError: when not even one sequence fits.
    """
    block, sequence = _block_and_sequence(config, geometry, dtype)
    # One block is vLLM's own.
    wanted = config.max_num_seqs * sequence + block
    available = int(free_bytes * KV_CACHE_SHARE) // config.num_engines
    if available < sequence + block:
        raise ResourceError(
            f"the KV cache of one sequence of {max_model_len(config)} tokens takes {sequence >> 20} MiB and each of "
            f"{config.num_engines} engines has {available >> 20}: lower rollout.max_response_tokens or "
            "rollout.num_engines, or set rollout.kv_cache_mib"
        )
    return min(wanted, available)


def _block_and_sequence(config: VllmConfig, geometry: ModelGeometry, dtype: str) -> tuple[int, int]:
    """Bytes of the KV cache that a block, and the blocks of a longest sequence, take on one device."""
    kv_heads = max(1, geometry.num_kv_heads // config.tensor_parallel_size)
    block = BLOCK_TOKENS * 2 * geometry.num_layers * kv_heads * geometry.head_dim * DTYPE_BYTES[dtype]
    return block, math.ceil(max_model_len(config) / BLOCK_TOKENS) * block


def _memory(context: RolloutContext) -> dict[str, str]:
    config: VllmConfig = context.config
    if config.gpu_memory_utilization is not None:
        return {"gpu-memory-utilization": str(config.gpu_memory_utilization)}
    if config.kv_cache_mib is not None:
        needed = sum(_block_and_sequence(config, context.geometry, config.dtype or context.dtype))
        if config.kv_cache_mib << 20 < needed:
            raise ResourceError(
                f"rollout.kv_cache_mib={config.kv_cache_mib} holds no sequence of {max_model_len(config)} tokens "
                "(rollout.max_prompt_tokens plus rollout.max_response_tokens), which takes "
                f"{math.ceil(needed / 2**20)} MiB: raise it, or lower one of them"
            )
        return {"kv-cache-memory-bytes": str(config.kv_cache_mib << 20)}
    free, _ = context.accelerator.memory()
    size = kv_cache_bytes(config, context.geometry, config.dtype or context.dtype, free)
    return {"kv-cache-memory-bytes": str(size)}


def _is_eager(context: RolloutContext) -> bool:
    config: VllmConfig = context.config
    return context.accelerator.name == "cpu" if config.enforce_eager is None else config.enforce_eager
