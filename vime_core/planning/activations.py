"""Activations of vime's Megatron model: what the backward pass needs, and the most that exists at one time.

The terms are those tensors that autograd saves in `vime_megatron`, counted operator by operator in the manner of
Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models" (arXiv:2205.05198), for RMSNorm,
grouped-query attention without a score matrix, a gated MLP and no dropout. A test compares the result with torch's
memory tracker.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vime_core.planning.shares import DTYPE_BYTES

if TYPE_CHECKING:
    from vime_core.models.geometry import ModelGeometry
    from vime_core.planning.layout import TrainLayout

FLOAT = 4
INDEX = 8


@dataclass(frozen=True, slots=True)
class Micro:
    """One packed micro-batch."""

    tokens: int
    places: int
    """Places of its sequences in attention, padding included: at most twice the tokens."""
    one_length: bool = False
    """All sequences are equally long: they are neither padded nor copied."""


@dataclass(frozen=True, slots=True)
class ActivationBytes:
    """Of one rank, beyond weights, gradients and optimizer."""

    saved: int
    """From the forward to the backward pass, of all micro-batches in flight."""
    layer: int
    """Most that the backward pass of a layer needs on top, recomputed activations included."""
    head: int
    """Most that log-probs and their backward pass need on top: logits of a chunk, gradient of the output weight."""
    embedding: int
    """At the end of the backward pass, when nothing else is left: the embedding's gradient."""

    @property
    def peak(self) -> int:
        """The most at one time."""
        return max(self.saved + self.layer, self.saved + self.head, self.embedding)


def activation_bytes(
    geometry: ModelGeometry,
    layout: TrainLayout,
    micro: Micro,
    *,
    dtype: str,
    chunk_tokens: int,
    stage: int = 0,
    in_flight: int = 1,
    fused_norms: bool = True,
) -> ActivationBytes:
    """The activations of one rank.

    Args:
        geometry: of the model.
        layout: of the trainer.
        micro: a micro-batch.
        dtype: of weights and activations.
        chunk_tokens: tokens whose logits exist at one time.
        stage: the rank's pipeline stage.
        in_flight: micro-batches whose backward pass is still to come; with 1F1B, stages from here to the last.
        fused_norms: whether RMSNorm is one kernel, as on devices; on the CPU torch keeps its parts.
    """
    count = layout.stage_layers[stage]
    first = sum(layout.stage_layers[:stage])
    layers = [
        layer_bytes(geometry, layout, micro, dtype=dtype, layer=layer, fused_norms=fused_norms)
        for layer in range(first, first + count)
    ]
    hidden = residual_bytes(geometry, layout, micro, dtype)
    kept = [hidden] * count if layout.recompute == "full" else layers
    last = stage == layout.pipeline - 1
    # With sequence parallelism the tokens of all ranks are gathered, for linear layers into one buffer.
    gathered = micro.tokens * geometry.hidden_size * DTYPE_BYTES[dtype] if layout.sequence else 0
    angles = micro.tokens * geometry.head_dim * FLOAT
    output = 2 * hidden + _norm_parts(hidden, dtype, fused_norms) if last else hidden
    again = max(layers) if layout.recompute == "full" else 0
    widest = max(_gradients_in_layer(geometry, layout, micro, dtype, layer) for layer in range(first, first + count))
    return ActivationBytes(
        saved=(sum(kept) + angles + output) * in_flight + gathered,
        layer=again + widest,
        head=gathered + head_bytes(geometry, layout, micro.tokens, dtype=dtype, chunk_tokens=chunk_tokens)
        if last
        else 0,
        embedding=embedding_bytes(geometry, layout, dtype) + 2 * hidden if stage == 0 else 0,
    )


def residual_bytes(geometry: ModelGeometry, layout: TrainLayout, micro: Micro, dtype: str) -> int:
    """The hidden states between layers; with sequence parallelism each rank has its share of the tokens."""
    return micro.tokens * geometry.hidden_size * DTYPE_BYTES[dtype] // (layout.tensor if layout.sequence else 1)


def layer_bytes(
    geometry: ModelGeometry, layout: TrainLayout, micro: Micro, *, dtype: str, layer: int, fused_norms: bool
) -> int:
    """What one layer saves without recomputation."""
    hidden = residual_bytes(geometry, layout, micro, dtype)
    # The inputs of both norms, which are the residual stream, and their results, the inputs of the linear layers.
    saved = 4 * hidden + 2 * _norm_parts(hidden, dtype, fused_norms)
    return saved + _attention(geometry, layout, micro, dtype, fused_norms) + _mlp(geometry, layout, micro, dtype, layer)


def _attention(geometry: ModelGeometry, layout: TrainLayout, micro: Micro, dtype: str, fused_norms: bool) -> int:
    size = DTYPE_BYTES[dtype]
    heads, kv_heads = geometry.num_heads // layout.tensor, max(1, geometry.num_kv_heads // layout.tensor)
    q, kv = heads * geometry.head_dim, kv_heads * geometry.head_dim
    # The fused projection (keys and values are views of it), queries copied out of it, both rotated, the result.
    token = (q + 2 * kv) + q + q + kv + q
    # Cosine and sine, for queries and for keys.
    token += 4 * geometry.head_dim
    total = micro.tokens * token * size
    # Inverse norms of each head, and logarithms of the attention's sums.
    total += micro.tokens * FLOAT * (heads + kv_heads if geometry.qk_norm else 0)
    total += micro.places * FLOAT * heads
    if geometry.qk_norm:
        total += _norm_parts(micro.tokens * (q + kv) * size, dtype, fused_norms)
    if not micro.one_length:
        # Queries, keys and values are laid out anew, in place of the rotated ones, and the result is picked out.
        copies = micro.places * (2 * q + 2 * kv) - micro.tokens * (q + kv)
        total += 0 if layout.recompute == "selective" else copies * size
    return total


def _mlp(geometry: ModelGeometry, layout: TrainLayout, micro: Micro, dtype: str, layer: int) -> int:
    experts = geometry.experts
    if experts is None or layer in experts.dense_layers:
        # gate and up, silu(gate), up again (Megatron adds an offset to it), their product.
        return 5 * micro.tokens * geometry.ffn_size // layout.tensor * DTYPE_BYTES[dtype]
    return _experts(geometry, layout, micro, dtype)


def _experts(geometry: ModelGeometry, layout: TrainLayout, micro: Micro, dtype: str) -> int:
    experts = geometry.experts
    if experts is None:
        return 0
    rows, size = _routed_rows(geometry, layout, micro), DTYPE_BYTES[dtype]
    # The token, gate and up, silu(gate), up again, their product, and that times the expert's probability; grouped,
    # up is not copied.
    widths = 5 if layout.grouped_experts else 6
    computed = rows * (geometry.hidden_size + widths * experts.ffn_size // layout.expert_tensor) * size
    # Logits, probabilities and their transpose in float32; indices of the chosen experts, of tokens and of rows.
    routing = 3 * experts.num_experts * FLOAT + 3 * experts.top_k * INDEX
    return computed + micro.tokens // (layout.tensor if layout.sequence else 1) * routing


def _routed_rows(geometry: ModelGeometry, layout: TrainLayout, micro: Micro) -> int:
    """Rows that a rank's experts see when every expert gets as many."""
    top_k = geometry.experts.top_k if geometry.experts else 0
    return micro.tokens * top_k * layout.expert_tensor // (layout.tensor if layout.sequence else 1)


def _gradients_in_layer(geometry: ModelGeometry, layout: TrainLayout, micro: Micro, dtype: str, layer: int) -> int:
    """Gradients inside the MLP, beyond what they replace: two of its width; with experts, of rows in and out too."""
    experts = geometry.experts
    if experts is None or layer in experts.dense_layers:
        return 2 * micro.tokens * geometry.ffn_size // layout.tensor * DTYPE_BYTES[dtype]
    rows = _routed_rows(geometry, layout, micro)
    hidden, ffn = geometry.hidden_size, experts.ffn_size // layout.expert_tensor
    most = 2 * rows * (hidden + ffn)
    if layout.grouped_experts:
        # The second matrices of all experts here, or their gradients, exist together, with the gradients of rows; then
        # the first ones, twice as large, when all is gone that was saved between the two.
        stacked = experts.num_experts // layout.expert * hidden * ffn
        most = max(most, stacked + rows * (hidden + 2 * ffn), 2 * stacked + rows * (hidden - 3 * ffn))
    return most * DTYPE_BYTES[dtype]


def head_bytes(geometry: ModelGeometry, layout: TrainLayout, tokens: int, *, dtype: str, chunk_tokens: int) -> int:
    """Backward pass of the chunked log-probs (`vime_megatron.logprobs`).

    The output weight's gradient in float32 and a chunk's share of it, the chunk's logits and their gradient, and the
    gradient of the hidden states.
    """
    vocabulary, size = -(-geometry.vocab_size // layout.tensor), DTYPE_BYTES[dtype]
    chunk = min(chunk_tokens, tokens)
    weight = vocabulary * geometry.hidden_size * (FLOAT + size)
    return weight + chunk * vocabulary * (FLOAT + size) + tokens * geometry.hidden_size * size


def embedding_bytes(geometry: ModelGeometry, layout: TrainLayout, dtype: str) -> int:
    """A rank's share of the embedding, or of its gradient."""
    return -(-geometry.vocab_size // layout.tensor) * geometry.hidden_size * DTYPE_BYTES[dtype]


def _norm_parts(input_bytes: int, dtype: str, fused: bool) -> int:
    """What RMSNorm keeps besides its input: nothing but a number a token when it is one kernel."""
    if fused:
        return 0
    elements = input_bytes // DTYPE_BYTES[dtype]
    return elements * DTYPE_BYTES[dtype] + (0 if dtype == "float32" else elements * FLOAT)
