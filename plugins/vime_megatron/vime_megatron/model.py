"""Megatron's GPTModel from a geometry."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from vime_core.errors import ModelError
from vime_megatron import compat, mcore
from vime_megatron.attention import PackedAttention
from vime_megatron.norm import RMSNorm
from vime_megatron.rope import RotaryAngles, rotary_frequencies

if TYPE_CHECKING:
    from vime_core.models.geometry import ModelGeometry
    from vime_megatron.packed import PackedSequences


class PolicyModel(mcore.GPTModel):
    """A GPTModel for packed sequences that stops at the hidden states.

    The logits of all tokens never exist at one time: `vime_megatron.logprobs` applies the output layer in chunks.
    """

    def forward(self, token_ids: torch.Tensor, position_ids: torch.Tensor, packed: PackedSequences) -> torch.Tensor:
        """Run this pipeline stage.

        Args:
            token_ids: [T].
            position_ids: [T], restarting with each sequence.
            packed: layout of the sequences.

        Returns:
            [T, 1, hidden]: after the final norm on the last stage.
        """
        hidden = None
        if self.pre_process:
            hidden = self.embedding(input_ids=token_ids[None], position_ids=position_ids[None])
        return self.decoder(
            hidden_states=hidden,
            attention_mask=None,
            rotary_pos_emb=self.rotary_pos_emb(position_ids),
            packed_seq_params=packed,
        )

    def output_weight(self) -> torch.Tensor:
        """[vocabulary of this tensor-parallel rank, hidden], on the last pipeline stage."""
        if self.share_embeddings_and_output_weights:
            return self.shared_embedding_or_output_weight()
        return self.output_layer.weight


def transformer_config(geometry: ModelGeometry, dtype: torch.dtype) -> mcore.TransformerConfig:
    """Megatron's description of the model."""
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
    )


def build_model(geometry: ModelGeometry, dtype: torch.dtype, device: torch.device) -> PolicyModel:
    """An uninitialised model on `device`.

    Raises:
        ModelError: for a feature of the geometry that this backend does not have.
    """
    if geometry.attention_bias:
        raise ModelError(f"{geometry.family}: attention biases are not supported by training backend megatron")
    if geometry.experts is not None:
        raise ModelError(f"{geometry.family}: mixture-of-experts layers are not supported by training backend megatron")
    config = transformer_config(geometry, dtype)
    model = PolicyModel(
        config=config,
        transformer_layer_spec=_block_spec(config),
        vocab_size=geometry.vocab_size,
        max_sequence_length=geometry.max_positions,
        pre_process=mcore.parallel_state.is_pipeline_first_stage(),
        post_process=mcore.parallel_state.is_pipeline_last_stage(),
        share_embeddings_and_output_weights=geometry.tied_embeddings,
        position_embedding_type="none",
    )
    model.rotary_pos_emb = RotaryAngles(geometry, device)
    return model.to(device)


def _block_spec(config: mcore.TransformerConfig) -> mcore.TransformerBlockSubmodules:
    """The layers of this pipeline stage."""
    attention = mcore.SelfAttentionSubmodules(
        linear_qkv=mcore.ColumnParallelLinear,
        core_attention=PackedAttention,
        linear_proj=mcore.RowParallelLinear,
        q_layernorm=RMSNorm if config.qk_layernorm else mcore.IdentityOp,
        k_layernorm=RMSNorm if config.qk_layernorm else mcore.IdentityOp,
    )
    mlp = mcore.MLPSubmodules(linear_fc1=mcore.ColumnParallelLinear, linear_fc2=mcore.RowParallelLinear)
    layer = mcore.ModuleSpec(
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
            mlp=mcore.ModuleSpec(module=mcore.MLP, params={"ffn_hidden_size": config.ffn_hidden_size}, submodules=mlp),
            mlp_bda=mcore.get_bias_dropout_add,
        ),
    )
    return mcore.TransformerBlockSubmodules(
        layer_specs=[layer] * mcore.get_num_layers_to_build(config), layer_norm=RMSNorm
    )


def _leave(weight: torch.Tensor) -> torch.Tensor:
    """Initialise nothing."""
    return weight


def _finalize_gradients(model: list[torch.nn.Module], _num_tokens: torch.Tensor | None, **groups: object) -> None:
    """Reduce gradients over ranks, without Megatron's own division by a count of tokens."""
    mcore.finalize_model_grads(model, None, **groups)
