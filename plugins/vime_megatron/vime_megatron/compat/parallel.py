"""Guards for models that are shared out over ranks, on machines without a CUDA or ROCm device."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed
from torch.nn import functional

from vime_megatron.compat.cuda import host_torch, without_device
from vime_megatron.compat.guard import Guard, Site

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MAPPINGS = "tensor_parallel.mappings"
P2P = "pipeline_parallel.p2p_communication"
RANDOM = "tensor_parallel.random"


def _install_uneven_collectives() -> None:
    mappings = vars(import_module(f"megatron.core.{MAPPINGS}"))
    gather, scatter = mappings["_gather_along_first_dim"], mappings["_reduce_scatter_along_first_dim"]
    if not hasattr(gather, "__wrapped__"):
        mappings["_gather_along_first_dim"] = _uneven_gather(gather)
        mappings["_reduce_scatter_along_first_dim"] = _uneven_reduce_scatter(scatter)


def _uneven_gather(plain: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def gather(
        tensor: torch.Tensor, group: distributed.ProcessGroup, sizes: Sequence[int] | None = None, *args: Any
    ) -> torch.Tensor:
        if sizes is None or group.size() == 1:
            return plain(tensor, group, sizes, *args)
        longest = max(sizes)
        padded = _pad_rows(tensor, longest)
        parts = [torch.empty_like(padded) for _ in sizes]
        distributed.all_gather(parts, padded, group=group)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    gather.__wrapped__ = plain  # type: ignore[attr-defined]
    return gather


def _uneven_reduce_scatter(plain: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def reduce_scatter(
        tensor: torch.Tensor, group: distributed.ProcessGroup, sizes: Sequence[int] | None = None, *args: Any
    ) -> torch.Tensor:
        if sizes is None or group.size() == 1:
            return plain(tensor, group, sizes, *args)
        longest = max(sizes)
        parts = [_pad_rows(part, longest) for part in tensor.split(list(sizes))]
        output = torch.empty_like(parts[0])
        distributed.reduce_scatter(output, parts, group=group)
        return output[: sizes[group.rank()]].contiguous()

    reduce_scatter.__wrapped__ = plain  # type: ignore[attr-defined]
    return reduce_scatter


def _pad_rows(tensor: torch.Tensor, rows: int) -> torch.Tensor:
    return functional.pad(tensor, [0, 0] * (tensor.ndim - 1) + [0, rows - len(tensor)])


def _install_no_device_generator() -> None:
    random = vars(import_module(f"megatron.core.{RANDOM}"))
    random["_get_cuda_rng_state"] = _no_state
    random["_set_cuda_rng_state"] = _keep_state


def _no_state(*_: Any, **__: Any) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8)


def _keep_state(*_: Any, **__: Any) -> None:
    """There is no generator to set."""


PARALLEL_GUARDS = (
    host_torch(
        "tensor_parallel_mappings",
        "results of gathering and scattering are allocated on the current CUDA device",
        Site(MAPPINGS, 91, "device=torch.cuda.current_device()"),
        Site(MAPPINGS, 141, "device=torch.cuda.current_device()"),
        Site(MAPPINGS, 181, "device=torch.cuda.current_device()"),
        Site(MAPPINGS, 442, "device=torch.cuda.current_device()"),
    ),
    host_torch(
        "tensor_parallel_layers",
        "the scattered gradient of a layer's input is allocated on the current CUDA device",
        Site("tensor_parallel.layers", 552, "device=torch.cuda.current_device()"),
    ),
    host_torch(
        "global_memory_buffer",
        "buffers of gathered activations are allocated on the current CUDA device",
        Site("utils", 631, "device=torch.cuda.current_device()"),
    ),
    host_torch(
        "pipeline_communication",
        "shapes and activations are received on the current CUDA device, which is then waited for",
        Site(P2P, 190, "device=torch.cuda.current_device()"),
        Site(P2P, 242, "torch.cuda.synchronize()"),
        Site(P2P, 313, "device=torch.cuda.current_device()"),
        Site(P2P, 321, "device=torch.cuda.current_device()"),
    ),
    Guard(
        name="uneven_collectives",
        reason="gloo gathers and scatters equal shares only; experts get different numbers of tokens",
        sites=(
            Site(MAPPINGS, 150, "torch.distributed.all_gather(output_tensor_list, input_, group=group)"),
            Site(MAPPINGS, 193, "torch.distributed.reduce_scatter(output, input_tensor_list, group=group)"),
        ),
        needed=without_device,
        install=_install_uneven_collectives,
    ),
    Guard(
        name="no_device_generator",
        reason="recomputation saves and restores the state of the CUDA generator; here nothing draws from one",
        sites=(
            Site(RANDOM, 55, "return torch.cuda.random.get_rng_state(device=device)"),
            Site(RANDOM, 84, "if hasattr(_C, '_cuda_setRNGState')"),
        ),
        needed=without_device,
        install=_install_no_device_generator,
    ),
)
"""All guards for sharing out and recomputation."""
