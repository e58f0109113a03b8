"""Megatron's GPTModel from a geometry."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from vime_core.errors import ModelError
from vime_megatron import compat, mcore
from vime_megatron.attention import PackedAttention
from vime_megatron.grouped import expert_module
from vime_megatron.norm import RMSNorm
from vime_megatron.rope import RotaryAngles, rotary_frequencies
from vime_megatron.router import Router

if TYPE_CHECKING:
    from vime_core.models.geometry import ModelGeometry
    from vime_core.models.layout import Layout
    from vime_megatron.config import MegatronConfig
    from vime_megatron.packed import PackedSequences
    from vime_megatron.ranks import Ranks


class PolicyModel(mcore.GPTModel):
    """A GPTModel for packed sequences that stops at the hidden states.

    The logits of all tokens never exist at one time: `vime_megatron.logprobs` applies the output layer in chunks.
    """

    def forward(
        self,
        token_ids: torch.Tensor,
        position_ids: torch.Tensor,
        packed: PackedSequences,
        padding: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Run this pipeline stage.

        Args:
            token_ids: [T].
            position_ids: [T], restarting with each sequence.
            packed: layout of the sequences.
            padding: [1, T], or [1, T / tensor-parallel size] with sequence parallelism: this rank's tokens that an
                auxiliary loss of experts leaves out.

        Returns:
            [T, 1, hidden], or [T / tensor-parallel size, 1, hidden] with sequence parallelism: after the final norm
            on the last stage.
        """
        hidden = None
        if self.pre_process:
            hidden = self.embedding(input_ids=token_ids[None], position_ids=position_ids[None])
        return self.decoder(
            hidden_states=hidden,
            attention_mask=None,
            rotary_pos_emb=self.rotary_pos_emb(position_ids),
            packed_seq_params=packed,
            padding_mask=padding,
        )

    def _is_in_embd_group(self) -> bool:
        """Whether a tied embedding is copied between stages at construction: both read it from the checkpoint."""
        return False

    def output_weight(self) -> torch.Tensor:
        """[vocabulary of this tensor-parallel rank, hidden], on the last pipeline stage."""
        if self.share_embeddings_and_output_weights:
            return self.shared_embedding_or_output_weight()
        return self.output_layer.weight


def transformer_config(
    geometry: ModelGeometry, dtype: torch.dtype, layout: Layout, config: MegatronConfig, *, initialize: bool = True
) -> mcore.TransformerConfig:
    """Megatron's description of the model and of how it is shared out; see `build_model`."""
    _, attention_factor = rotary_frequencies(geometry)
    return mcore.TransformerConfig(
        num_layers=geometry.num_layers,
        hidden_size=geometry.hidden_size,
        num_attention_heads=geometry.num_heads,
        num_query_groups=geometry.num_kv_heads,
        kv_channels=geometry.head_dim,
        ffn_hidden_size=geometry.ffn_size,
        normalization="RMSNorm",
        layernorm_epsilon=geometry.norm_eps,
        qk_layernorm=geometry.qk_norm,
        gated_linear_unit=True,
        activation_func=functional.silu,
        add_bias_linear=False,
        # Cosine and sine scaled by a factor scale the scores by its square.
        softmax_scale=geometry.head_dim**-0.5 * attention_factor**2,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=dtype == torch.bfloat16,
        # Weights are read from a checkpoint; the call itself marks which are sharded.
        perform_initialization=initialize,
        init_method=_leave,
        output_layer_init_method=_leave,
        embedding_init_method=_leave,
        use_cpu_initialization=not compat.has_device(),
        # Gradients are sums over tokens, micro-batches and ranks; the loss is divided by its declared denominator.
        calculate_per_token_loss=True,
        finalize_model_grads_func=_finalize_gradients,
        # The fused variants need Apex or TransformerEngine.
        gradient_accumulation_fusion=False,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        apply_rope_fusion=False,
        persist_layer_norm=False,
        cuda_graph_scope=[],
        **_parallelism(geometry, layout, config),
        **_experts(geometry, config),
        **RECOMPUTE[config.recompute],
    )


RECOMPUTE: dict[str, dict[str, Any]] = {
    "none": {},
    "selective": {"recompute_granularity": "selective", "recompute_modules": ["core_attn"]},
    "full": {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
}
"""Setting to Megatron's own."""


def _parallelism(geometry: ModelGeometry, layout: Layout, config: MegatronConfig) -> dict[str, Any]:
    stages = [["decoder"] * count for count in layout.stage_layers]
    stages[0].insert(0, "embedding")
    stages[-1].append("loss")
    return {
        "tensor_model_parallel_size": layout.tensor,
        "sequence_parallel": layout.sequence,
        "pipeline_model_parallel_size": layout.pipeline,
        "pipeline_model_parallel_layout": stages if layout.pipeline > 1 else None,
        "variable_seq_lengths": layout.pipeline > 1 and not uniform_lengths(geometry, layout, config),
        "expert_model_parallel_size": layout.expert,
        "expert_tensor_parallel_size": layout.expert_tensor,
        # Megatron refuses lengths that vary with the other one, even where there are no experts.
        "moe_token_dispatcher_type": "alltoall" if geometry.experts is None else config.token_dispatcher,
    }


def _experts(geometry: ModelGeometry, config: MegatronConfig) -> dict[str, Any]:
    experts = geometry.experts
    if experts is None:
        return {}
    return {
        "num_moe_experts": experts.num_experts,
        "moe_router_topk": experts.top_k,
        "moe_ffn_hidden_size": experts.ffn_size,
        "moe_layer_freq": [int(layer not in experts.dense_layers) for layer in range(geometry.num_layers)],
        "moe_router_dtype": "fp32",
        "moe_router_pre_softmax": True,
        "moe_router_load_balancing_type": "aux_loss" if config.moe_aux_loss else "none",
        "moe_aux_loss_coeff": config.moe_aux_loss,
    }


def uniform_lengths(geometry: ModelGeometry, layout: Layout, config: MegatronConfig) -> bool:
    """Whether micro-batches must have one length: equal shares are gathered from ranks and stages."""
    gathers = geometry.experts is not None and config.token_dispatcher == "allgather"
    return gathers and (layout.expert > 1 or layout.pipeline > 1)


def build_model(
    geometry: ModelGeometry, dtype: torch.dtype, ranks: Ranks, config: MegatronConfig, *, initialize: bool = True
) -> PolicyModel:
    """This rank's part of a model without values.

    Args:
        geometry: of the model.
        dtype: of its parameters.
        ranks: how it is shared out.
        config: settings of the backend.
        initialize: whether it will be trained; else its memory is not even touched.

    Raises:
        ModelError: for a feature of the geometry that this backend or this torch does not have.
    """
    if geometry.attention_bias:
        raise ModelError(f"{geometry.family}: attention biases are not supported by training backend megatron")
    layout = ranks.layout
    model = PolicyModel(
        config=transformer_config(geometry, dtype, layout, config, initialize=initialize),
        transformer_layer_spec=_block_spec(geometry, layout, ranks.here.stage, config),
        vocab_size=math.ceil(geometry.vocab_size / layout.tensor) * layout.tensor,
        max_sequence_length=geometry.max_positions,
        pre_process=ranks.is_first_stage,
        post_process=ranks.is_last_stage,
        share_embeddings_and_output_weights=geometry.tied_embeddings,
        position_embedding_type="none",
    )
    model.rotary_pos_emb = RotaryAngles(geometry, ranks.device)
    _mark_experts(model)
    return model.to(ranks.device)


def _block_spec(
    geometry: ModelGeometry, layout: Layout, stage: int, config: MegatronConfig
) -> mcore.TransformerBlockSubmodules:
    """The layers of a pipeline stage."""
    first = layout.first_layer(stage)
    layers = range(first, first + layout.stage_layers[stage])
    return mcore.TransformerBlockSubmodules(
        layer_specs=[_layer_spec(geometry, layer, config) for layer in layers], layer_norm=RMSNorm
    )


def _layer_spec(geometry: ModelGeometry, layer: int, config: MegatronConfig) -> mcore.ModuleSpec:
    attention = mcore.SelfAttentionSubmodules(
        linear_qkv=mcore.ColumnParallelLinear,
        core_attention=PackedAttention,
        linear_proj=mcore.RowParallelLinear,
        q_layernorm=RMSNorm if geometry.qk_norm else mcore.IdentityOp,
        k_layernorm=RMSNorm if geometry.qk_norm else mcore.IdentityOp,
    )
    return mcore.ModuleSpec(
        module=mcore.TransformerLayer,
        submodules=mcore.TransformerLayerSubmodules(
            input_layernorm=RMSNorm,
            self_attention=mcore.ModuleSpec(
                module=mcore.SelfAttention,
                params={"attn_mask_type": mcore.AttnMaskType.causal},
                submodules=attention,
            ),
            self_attn_bda=mcore.get_bias_dropout_add,
            pre_mlp_layernorm=RMSNorm,
            mlp=_mlp_spec(geometry, layer, config),
            mlp_bda=mcore.get_bias_dropout_add,
        ),
    )


def _mlp_spec(geometry: ModelGeometry, layer: int, config: MegatronConfig) -> mcore.ModuleSpec:
    experts = geometry.experts
    linear = mcore.MLPSubmodules(linear_fc1=mcore.ColumnParallelLinear, linear_fc2=mcore.RowParallelLinear)
    if experts is None or layer in experts.dense_layers:
        return mcore.ModuleSpec(module=mcore.MLP, params={"ffn_hidden_size": geometry.ffn_size}, submodules=linear)
    return mcore.ModuleSpec(
        module=mcore.MoELayer,
        submodules=mcore.MoESubmodules(
            experts=mcore.ModuleSpec(module=expert_module(geometry, config), submodules=linear),
            router=partial(Router, normalize=experts.normalize_top_k),
        ),
    )


def _mark_experts(model: PolicyModel) -> None:
    """Let gradients of experts be summed over the ranks that hold the same ones.

    Megatron 0.16.1 marks them with expert parallelism only. Without it, experts that tensor-parallel ranks do not share
    out are copies on ranks that see different tokens, and their gradients would not be summed.
    """
    for module in model.modules():
        if isinstance(module, mcore.SequentialMLP):
            for weight in module.parameters():
                weight.allreduce = False


def _leave(weight: torch.Tensor) -> torch.Tensor:
    """Initialise nothing."""
    return weight


def _finalize_gradients(model: list[torch.nn.Module], _num_tokens: torch.Tensor | None, **groups: object) -> None:
    """Reduce gradients over ranks, without Megatron's own division by a count of tokens."""
    mcore.finalize_model_grads(model, None, **groups)
