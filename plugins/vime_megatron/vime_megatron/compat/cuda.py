"""Guards for machines without a CUDA or ROCm device.

Megatron's modules reach torch through the global name `torch` of each module. Where one of them allocates on a
device that is not there, that name is bound to a stand-in which passes everything through to torch except the
device: nothing outside the module sees a difference, and no call made elsewhere is slowed down.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from vime_megatron.compat.guard import Guard, Site

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

HOST = torch.device("cpu")
"""Where tensors live that belong to no accelerator."""

FACTORIES = ("tensor", "zeros")
"""Functions of torch that the guarded modules call with `device="cuda"`."""


class _HostTorch(ModuleType):
    """`torch`, but "cuda" means the host."""

    def __init__(self) -> None:
        super().__init__("torch")
        self.cuda = _HostCuda()
        for name in FACTORIES:
            setattr(self, name, _on_host(getattr(torch, name)))

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


class HostStream:
    """A stream of work that is done when it is issued; it is its own event."""

    def wait_stream(self, _: HostStream) -> None:
        """Nothing to wait for."""

    def record_event(self) -> HostStream:
        """Already reached."""
        return self

    def synchronize(self) -> None:
        """Nothing to wait for."""


class _HostCuda(ModuleType):
    """`torch.cuda`, but the current device is the host."""

    Stream = HostStream

    def __init__(self) -> None:
        super().__init__("torch.cuda")

    def current_device(self) -> torch.device:
        return HOST

    def synchronize(self) -> None:
        """The host is never behind."""

    def current_stream(self) -> HostStream:
        return HostStream()

    def stream(self, _: HostStream) -> AbstractContextManager[None]:
        return nullcontext()

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cuda, name)


def _on_host(factory: Any) -> Any:
    def create(*args: Any, device: Any = None, **kwargs: Any) -> Any:
        return factory(*args, device=HOST if device == "cuda" else device, **kwargs)

    return create


HOST_TORCH = _HostTorch()


def without_device() -> bool:
    """Whether torch sees no CUDA or ROCm device."""
    return not torch.cuda.is_available()


def host_torch(name: str, reason: str, *sites: Site) -> Guard:
    """A guard that binds `torch` in the module of `sites` to the stand-in."""

    def install() -> None:
        for site in sites:
            vars(import_module(f"megatron.core.{site.module}"))["torch"] = HOST_TORCH

    return Guard(name=name, reason=reason, sites=sites, needed=without_device, install=install)


TYPE_NAME_CALLERS = frozenset({"megatron.core.optimizer.distrib_optimizer", "megatron.core.optimizer.clip_grads"})
"""Modules that compare `Tensor.type()` with a CUDA type name."""


def _install_type_names() -> None:
    plain = torch.Tensor.type
    if getattr(plain, "answers_megatron", False):
        return

    def type_(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        answer = plain(self, *args, **kwargs)
        asked_for_name = not args and not kwargs
        if asked_for_name and sys._getframe(1).f_globals.get("__name__") in TYPE_NAME_CALLERS:
            return answer.replace("torch.", "torch.cuda.", 1) if self.device == HOST else answer
        return answer

    type_.answers_megatron = True  # type: ignore[attr-defined]
    torch.Tensor.type = type_  # type: ignore[method-assign, assignment]


CUDA_GUARDS = (
    host_torch(
        "param_and_grad_buffer",
        "the contiguous parameter and gradient buffers are allocated on the current CUDA device",
        Site("distributed.param_and_grad_buffer", 800, "device=torch.cuda.current_device()"),
        Site("distributed.param_and_grad_buffer", 806, "device=torch.cuda.current_device()"),
    ),
    host_torch(
        "mixed_precision_optimizer",
        "the overflow buffer and the unit loss scale are allocated on CUDA",
        Site("optimizer.optimizer", 481, "torch.tensor([0], dtype=torch.int, device='cuda')"),
        Site("optimizer.optimizer", 485, "torch.tensor([1.0], dtype=torch.float, device='cuda')"),
    ),
    host_torch(
        "clip_grads",
        "buffers of the gradient norm and of gradient scaling are allocated on CUDA",
        Site("optimizer.clip_grads", 103, "torch.zeros(1, dtype=torch.int, device='cuda')"),
        Site("optimizer.clip_grads", 115, "torch.zeros(1, dtype=torch.float, device='cuda')"),
        Site("optimizer.clip_grads", 174, "torch.zeros(1, dtype=torch.int, device='cuda')"),
    ),
    host_torch(
        "l2_norm",
        "the local multi-tensor norm returns its result on CUDA",
        Site("utils", 1207, 'torch.tensor([float(l2_reduced)], dtype=torch.float, device="cuda")'),
    ),
    host_torch(
        "schedules",
        "the token counter of the forward-backward schedules is allocated on CUDA",
        Site("pipeline_parallel.schedules", 596, 'torch.zeros([], dtype=torch.int, device="cuda")'),
    ),
    Guard(
        name="type_names",
        reason="parameters and gradients are recognised by the names of CUDA tensor types; others raise TypeError",
        sites=(
            Site("optimizer.distrib_optimizer", 361, "model_param.type() in ['torch.cuda.HalfTensor', 'torch.cuda.BF"),
            Site("optimizer.distrib_optimizer", 420, "model_param.type() == 'torch.cuda.FloatTensor'"),
            Site("optimizer.distrib_optimizer", 582, "param.type() in ['torch.cuda.HalfTensor', 'torch.cuda.BF"),
            Site("optimizer.clip_grads", 167, "assert param.grad.type() == 'torch.cuda.FloatTensor'"),
        ),
        needed=without_device,
        install=_install_type_names,
    ),
)
"""All guards for machines without a device."""
