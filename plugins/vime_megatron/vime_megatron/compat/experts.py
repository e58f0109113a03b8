"""Guards for mixture-of-experts layers, where there is no TransformerEngine or no device."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch

from vime_megatron.compat.cuda import host_torch, without_device
from vime_megatron.compat.guard import Guard, Site

UTILS = "transformer.moe.moe_utils"
DISPATCHER = "transformer.moe.token_dispatcher"


def _without_engine() -> bool:
    return not hasattr(import_module(f"megatron.core.{UTILS}"), "te_general_gemm")


def _install_no_engine() -> None:
    vars(import_module(f"megatron.core.{UTILS}"))["te_general_gemm"] = None


def _install_host_splits() -> None:
    vars(import_module(f"megatron.core.{DISPATCHER}"))["maybe_move_tensor_to_cpu"] = _on_host


def _on_host(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
    return tensor.detach().numpy() if as_numpy and torch.is_tensor(tensor) else tensor


EXPERT_GUARDS = (
    Guard(
        name="no_transformer_engine",
        reason="the router asks for a function of TransformerEngine by a name that is missing without it",
        sites=(
            Site(UTILS, 1192, "if te_general_gemm is not None"),
            Site(UTILS, 1225, "if te_general_gemm is not None"),
        ),
        needed=_without_engine,
        install=_install_no_engine,
    ),
    host_torch(
        "router",
        "a router whose weight is on the host is moved to the current CUDA device",
        Site("transformer.moe.router", 90, "self.weight.data.to(device=torch.cuda.current_device())"),
    ),
    host_torch(
        "dispatcher_streams",
        "counts of tokens are copied to the host on a CUDA stream of their own",
        Site(DISPATCHER, 445, "torch.cuda.Stream()"),
        Site(DISPATCHER, 871, "torch.cuda.current_stream()"),
        Site(DISPATCHER, 874, "torch.cuda.stream(self.cuda_dtoh_stream)"),
    ),
    Guard(
        name="host_splits",
        reason="counts of tokens become numbers only when they are moved from a CUDA device",
        sites=(Site(UTILS, 1093, "if torch.is_tensor(tensor) and tensor.is_cuda:"),),
        needed=without_device,
        install=_install_host_splits,
    ),
)
"""All guards for mixture-of-experts layers."""
