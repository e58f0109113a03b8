"""Memory of one device of a rollout engine."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vime_core.models.tensors import parameters
from vime_core.planning.shares import DTYPE_BYTES, share

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vime_core.models.geometry import ModelGeometry, TensorRule

FLOAT = 4
PREFILL_TOKENS = 4096
"""Least tokens of one scheduling step."""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What the engines are asked to be."""

    engines: int
    tensor: int
    """Devices of one engine."""
    dtype: str
    longest: int
    """Tokens of the longest sequence."""
    max_num_seqs: int
    utilization: float | None
    """Share of a device's memory that an engine may use; None when the size of the KV cache is given instead."""
    kv_cache: int | None
    """Bytes of one engine's KV cache on each of its devices; None for room for `max_num_seqs` longest sequences."""
    sleeps: bool = True
    """Whether it frees its memory while a trainer on the same devices computes."""

    @classmethod
    def of(cls, rollout: Any, train_dtype: str, engines: int) -> EngineSettings:
        """From the settings of a rollout backend; one that lacks a setting leaves it to its engines."""
        mib = getattr(rollout, "kv_cache_mib", None)
        return cls(
            engines=engines,
            tensor=rollout.tensor_parallel_size,
            dtype=getattr(rollout, "dtype", None) or train_dtype,
            longest=rollout.max_prompt_tokens + rollout.max_response_tokens,
            max_num_seqs=getattr(rollout, "max_num_seqs", 256),
            utilization=getattr(rollout, "gpu_memory_utilization", None),
            kv_cache=None if mib is None else mib << 20,
            sleeps=getattr(rollout, "sleep", None) is not False,
        )


@dataclass(frozen=True, slots=True)
class EngineBytes:
    """Of one device of an engine."""

    weights: int
    token: int
    """Keys and values of one token, all layers."""
    sequence: int
    """Keys and values of the longest sequence."""
    working: int
    """Activations of the largest step and the sampler's logits; an estimate, engines measure it as they start."""


def engine_bytes(geometry: ModelGeometry, tensor_map: Sequence[TensorRule], settings: EngineSettings) -> EngineBytes:
    """What an engine holds on each of its devices.

    Weights are sharded as in the trainer; key-value heads are repeated where there are fewer than devices. The largest
    step holds the inputs and both halves of the gated MLP of one layer. The sampler has logits and log-probs of every
    sequence in float32.
    """
    size = DTYPE_BYTES[settings.dtype]
    kv_heads = max(1, geometry.num_kv_heads // settings.tensor)
    token = 2 * geometry.num_layers * kv_heads * geometry.head_dim * size
    experts = geometry.experts
    width = max(geometry.ffn_size, experts.ffn_size * experts.top_k if experts else 0) // settings.tensor
    step = max(settings.longest, PREFILL_TOKENS, settings.max_num_seqs)
    return EngineBytes(
        weights=sum(share(item.rule, settings.tensor) for item in parameters(geometry, tensor_map)) * size,
        token=token,
        sequence=settings.longest * token,
        working=step * (4 * geometry.hidden_size + 3 * width) * size
        + 2 * settings.max_num_seqs * math.ceil(geometry.vocab_size / settings.tensor) * FLOAT,
    )
