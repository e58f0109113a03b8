from __future__ import annotations

import importlib
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from vime_grpo.config import GRPOConfig
from vime_grpo.grpo import GRPO
from vime_megatron import compat
from vime_megatron.compat.cuda import HOST_TORCH

if TYPE_CHECKING:
    from vime_megatron.compat.guard import Guard

GUARDS = compat.GUARDS
ON_HOST = (*compat.CUDA_GUARDS, *compat.PARALLEL_GUARDS, *compat.EXPERT_GUARDS[1:])
"""Those that only machines without a device need."""


@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.name)
def test_megatron_still_has_the_lines_that_a_guard_is_for(guard: Guard) -> None:
    """When this fails, read the new version around the line, correct the site, or drop the guard."""
    assert metadata.version("megatron-core") == "0.16.1"
    for site in guard.sites:
        file = importlib.import_module(f"megatron.core.{site.module}").__file__
        assert file is not None
        line = Path(file).read_text(encoding="utf-8").splitlines()[site.line - 1]
        assert site.text in line, f"{file}:{site.line}"


def test_guards_have_their_own_names_and_reasons() -> None:
    assert len({guard.name for guard in GUARDS}) == len(GUARDS)
    assert all(guard.reason and guard.sites for guard in GUARDS)


def test_installing_again_changes_nothing() -> None:
    first = compat.install()
    wrapped = torch.Tensor.type
    optimizer = importlib.import_module("megatron.core.optimizer.distrib_optimizer").DistributedOptimizer
    methods = optimizer.load_state_dict, optimizer._set_main_param_and_optimizer_states
    assert compat.install() == first
    assert torch.Tensor.type is wrapped
    assert (optimizer.load_state_dict, optimizer._set_main_param_and_optimizer_states) == methods


@pytest.mark.parametrize("guard", compat.CUDA_GUARDS, ids=lambda guard: guard.name)
def test_without_a_guard_there_is_no_update(
    guard: Guard, model: Any, start: Any, samples: Any, batch_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    algorithm = GRPO(GRPOConfig())
    batch = batch_of(samples, algorithm)
    start(model, clip_grad=1e-3).update(batch, algorithm)
    monkeypatch.setattr(compat, "install", list)
    if guard.name == "type_names":
        monkeypatch.setattr(torch.Tensor, "type", torch._C.TensorBase.type)
    else:
        for site in guard.sites:
            monkeypatch.setattr(f"megatron.core.{site.module}.torch", torch)
    with pytest.raises((AssertionError, RuntimeError, TypeError), match=r"CUDA|cuda"):
        start(model, clip_grad=1e-3).update(batch, algorithm)


def test_with_a_device_its_handling_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert not {guard.name for guard in compat.needed()} & {guard.name for guard in ON_HOST}


def test_with_a_fused_adam_its_states_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("megatron.core.optimizer.USING_PYTORCH_OPTIMIZER", False)
    assert not {guard.name for guard in compat.needed()} & {guard.name for guard in compat.ADAM_GUARDS}


def test_the_stand_in_differs_from_torch_in_the_device_only() -> None:
    assert HOST_TORCH.zeros(2, device="cuda").device.type == "cpu"
    assert HOST_TORCH.tensor([1.5], dtype=torch.float64, device="cuda").dtype == torch.float64
    assert HOST_TORCH.zeros(2, device="meta").device.type == "meta"
    assert HOST_TORCH.cuda.current_device() == torch.device("cpu")
    assert HOST_TORCH.Tensor is torch.Tensor
    assert HOST_TORCH.distributed is torch.distributed
    assert HOST_TORCH.cuda.is_available is torch.cuda.is_available


def test_torch_itself_is_not_changed() -> None:
    compat.install()
    assert torch.zeros(1).type() == "torch.FloatTensor"
    assert torch.zeros(1).type(torch.float64).dtype == torch.float64
    assert torch.cuda.current_device is not HOST_TORCH.cuda.current_device
    with pytest.raises((AssertionError, RuntimeError)):
        torch.zeros(1, device="cuda")


def test_only_the_named_modules_hear_of_cuda_types() -> None:
    compat.install()
    for name, expected in (
        ("megatron.core.optimizer.distrib_optimizer", "torch.cuda.BFloat16Tensor"),
        ("megatron.core.optimizer.clip_grads", "torch.cuda.BFloat16Tensor"),
        ("megatron.core.transformer.module", "torch.BFloat16Tensor"),
    ):
        asked: dict[str, str] = {"__name__": name}
        exec("def ask(tensor): return tensor.type()", asked)
        assert asked["ask"](torch.zeros(1, dtype=torch.bfloat16)) == expected  # type: ignore[operator]
