"""Megatron's distributed AdamW: building it, its rates, one step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from vime_megatron import mcore

if TYPE_CHECKING:
    from vime_megatron.config import MegatronConfig


# Without gradients the float32 shards that Megatron cuts out of the parameters are plain views, and not results of a
# graph whose gradient may not be set.
@torch.no_grad()
def build_optimizer(
    model: mcore.DistributedDataParallel, config: MegatronConfig, dtype: torch.dtype
) -> mcore.ChainedOptimizer:
    """The optimizer of a wrapped model, its states allocated; every data-parallel rank holds a share of them."""
    optimizer = mcore.get_megatron_optimizer(
        mcore.OptimizerConfig(
            optimizer="adam",
            lr=config.lr,
            weight_decay=config.weight_decay,
            adam_beta1=config.adam_beta1,
            adam_beta2=config.adam_beta2,
            adam_eps=config.adam_eps,
            clip_grad=config.clip_grad,
            bf16=dtype == torch.bfloat16,
            params_dtype=dtype,
            use_distributed_optimizer=True,
        ),
        [model],
    )
    for part in optimizer.chained_optimizers:
        _allocate_states(part)
    return optimizer


def set_rates(optimizer: mcore.ChainedOptimizer, lr: float, weight_decay: float) -> None:
    """Set the rates of an update; Megatron's groups say only what multiplies them (no decay of norms and biases)."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group["lr_mult"]
        group["weight_decay"] = weight_decay * group["wd_mult"]


def gradient_norm(optimizer: mcore.ChainedOptimizer) -> float:
    """Hand the reduced gradients to the optimizer; the global norm of them all, as they are."""
    optimizer.prepare_grads()
    return float(optimizer.get_grad_norm())


def step(optimizer: mcore.ChainedOptimizer, norm: float, clip_grad: float) -> None:
    """Scale the gradients down to a norm of `clip_grad`, unless that is 0, and update the weights of all ranks."""
    if clip_grad > 0:
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        mcore.clip_grad_by_total_norm_fp32(parameters, clip_grad, norm)
    optimizer.step_with_ready_grads()


def _allocate_states(part: mcore.DistributedOptimizer) -> None:
    """Allocate Adam's moments now: saving before the first update, and loading, need them in place."""
    part.init_state_fn(part.optimizer, part.config)
    if isinstance(part.optimizer, torch.optim.AdamW):
        for state in part.optimizer.state.values():
            state["step"] = torch.zeros((), dtype=torch.float32)
