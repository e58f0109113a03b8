"""Guards for torch's AdamW in Megatron's distributed optimizer, where neither TransformerEngine nor Apex brings one.

torch keeps a step count for each parameter as a tensor in its state; Megatron expects it in the parameter group.
"""

from __future__ import annotations

import functools
from importlib import import_module
from typing import Any

from vime_megatron.compat.guard import Guard, Site

OPTIMIZER = "optimizer.distrib_optimizer"


def _needed() -> bool:
    return bool(import_module("megatron.core.optimizer").USING_PYTORCH_OPTIMIZER)


def _distributed_optimizer() -> Any:
    return import_module(f"megatron.core.{OPTIMIZER}").DistributedOptimizer


def _install_state_without_step() -> None:
    owner = _distributed_optimizer()
    plain = owner._set_main_param_and_optimizer_states
    if hasattr(plain, "__wrapped__"):
        return

    @functools.wraps(plain)
    def set_states(self: Any, model_param: Any, tensors: dict[str, Any]) -> None:
        group, order = self.model_param_group_index_map[model_param]
        state = self.optimizer.state[self.optimizer.param_groups[group]["params"][order]]
        plain(self, model_param, {**tensors, "step": state["step"]})

    owner._set_main_param_and_optimizer_states = set_states


def _install_own_step_counts() -> None:
    owner = _distributed_optimizer()
    plain = owner.load_state_dict
    if hasattr(plain, "__wrapped__"):
        return

    @functools.wraps(plain)
    def load_state_dict(self: Any, state_dict: dict[str, Any]) -> None:
        plain(self, state_dict)
        for state in self.optimizer.state.values():
            state["step"] = state["step"].clone()

    owner.load_state_dict = load_state_dict


ADAM_GUARDS = (
    Guard(
        name="state_without_step",
        reason="loading copies every key of the optimizer state, but a checkpoint has no step count for a parameter",
        sites=(Site(OPTIMIZER, 940, "dst_tensors[key].copy_(tensors[key])"),),
        needed=_needed,
        install=_install_state_without_step,
    ),
    Guard(
        name="own_step_counts",
        reason="loading gives all parameters one step tensor; each step would then count as many as there are of them",
        sites=(Site(OPTIMIZER, 825, 's["step"] = step'),),
        needed=_needed,
        install=_install_own_step_counts,
    ),
)
"""All guards for torch's AdamW."""
