"""All that vime uses of Megatron-Core, in one place. Importing it takes seconds: only trainer ranks do."""

from __future__ import annotations

import warnings

from vime_megatron import noise

with warnings.catch_warnings():
    noise.ignore(noise.AT_IMPORT)

    from megatron.core import dist_checkpointing, parallel_state
    from megatron.core.dist_checkpointing.core import CheckpointingException
    from megatron.core.dist_checkpointing.dict_utils import nested_values
    from megatron.core.dist_checkpointing.mapping import ShardedStateDict, ShardedTensor, ShardedTensorFactory
    from megatron.core.dist_checkpointing.strategies.torch import (
        MCoreSavePlanner,
        TorchDistSaveShardedStrategy,
        _replace_state_dict_keys_with_sharded_keys,
        mcore_to_pyt_state_dict,
    )
    from megatron.core.distributed import (
        DistributedDataParallel,
        DistributedDataParallelConfig,
        finalize_model_grads,
    )
    from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
    from megatron.core.models.gpt import GPTModel
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.optimizer.clip_grads import clip_grad_by_total_norm_fp32
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
    from megatron.core.optimizer.optimizer import ChainedOptimizer, MegatronOptimizer
    from megatron.core.packed_seq_params import PackedSeqParams
    from megatron.core.pipeline_parallel import get_forward_backward_func
    from megatron.core.tensor_parallel import (
        ColumnParallelLinear,
        RowParallelLinear,
        copy_to_tensor_model_parallel_region,
        gather_from_sequence_parallel_region,
    )
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
    from megatron.core.transformer import ModuleSpec, TransformerConfig
    from megatron.core.transformer.attention import SelfAttention, SelfAttentionSubmodules
    from megatron.core.transformer.enums import AttnMaskType
    from megatron.core.transformer.identity_op import IdentityOp
    from megatron.core.transformer.mlp import MLP, MLPSubmodules
    from megatron.core.transformer.moe.experts import SequentialMLP
    from megatron.core.transformer.moe.moe_layer import MoELayer, MoESubmodules
    from megatron.core.transformer.moe.moe_utils import MoEAuxLossAutoScaler
    from megatron.core.transformer.moe.router import TopKRouter
    from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
    from megatron.core.transformer.transformer_layer import TransformerLayer, TransformerLayerSubmodules

__all__ = [
    "MLP",
    "AttnMaskType",
    "ChainedOptimizer",
    "CheckpointingException",
    "ColumnParallelLinear",
    "DistributedDataParallel",
    "DistributedDataParallelConfig",
    "DistributedOptimizer",
    "GPTModel",
    "IdentityOp",
    "MCoreSavePlanner",
    "MLPSubmodules",
    "MegatronOptimizer",
    "MoEAuxLossAutoScaler",
    "MoELayer",
    "MoESubmodules",
    "ModuleSpec",
    "OptimizerConfig",
    "PackedSeqParams",
    "RowParallelLinear",
    "SelfAttention",
    "SelfAttentionSubmodules",
    "SequentialMLP",
    "ShardedStateDict",
    "ShardedTensor",
    "ShardedTensorFactory",
    "TopKRouter",
    "TorchDistSaveShardedStrategy",
    "TransformerBlockSubmodules",
    "TransformerConfig",
    "TransformerLayer",
    "TransformerLayerSubmodules",
    "_replace_state_dict_keys_with_sharded_keys",
    "clip_grad_by_total_norm_fp32",
    "copy_to_tensor_model_parallel_region",
    "dist_checkpointing",
    "finalize_model_grads",
    "gather_from_sequence_parallel_region",
    "get_bias_dropout_add",
    "get_forward_backward_func",
    "get_megatron_optimizer",
    "mcore_to_pyt_state_dict",
    "model_parallel_cuda_manual_seed",
    "nested_values",
    "parallel_state",
]
