"""Loading weights into a running vLLM model, whole or not at all. Runs inside vLLM.

Only vLLM's layerwise reload works on every platform: after loading, its kernels keep weights in forms of their own, so
nothing can be copied into the parameters that are left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info
from vllm.model_executor.model_loader.reload.utils import get_tensor_load_numel

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch
    from torch import nn
    from vllm.config import ModelConfig


def begin(model: nn.Module) -> None:
    """Let the model expect all its weights anew; until `finish` it cannot compute."""
    initialize_layerwise_reload(model)
    _forget_expert_kernels(model)


def finish(model: nn.Module, config: ModelConfig) -> None:
    """Put the loaded weights in place.

    Raises:
        ValueError: names the layers that did not get all their weights. vLLM itself would only warn, and go on with
            the old ones.
    """
    lacking = {name: layer for name, layer in model.named_modules() if _lacks_weights(layer)}
    tied = _tied(model, lacking)
    missing = [name for name in lacking if name not in tied]
    if missing:
        shown = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
        raise ValueError(f"the push left out weights of {shown}")
    finalize_layerwise_reload(model, config)
    for layer in tied.values():
        # vLLM processes the layer that weights were loaded into. On the CPU the other one holds a packed copy too.
        method: Any = layer.quant_method
        method.process_weights_after_loading(layer)


def _forget_expert_kernels(model: nn.Module) -> None:
    """Let experts that a CPU kernel keeps packed be packed again when their weights have arrived.

    vLLM packs them when it builds the kernel, and only then: on a reload it would put plain weights where the kernel
    reads packed ones. Nothing would tell; the model would only compute something else.
    """
    for layer in model.modules():
        method: Any = getattr(layer, "quant_method", None)
        kernel = method.moe_kernel if isinstance(method, UnquantizedFusedMoEMethod) else None
        if kernel is not None and isinstance(kernel.fused_experts, CPUUnquantizedExperts):
            method.moe_kernel = None


def _tied(model: nn.Module, lacking: Mapping[str, nn.Module]) -> dict[str, nn.Module]:
    """Layers without weights of their own: they share the parameters of a layer that has got them."""
    waiting = set(lacking.values())
    arrived = {id(p) for layer in model.modules() if layer not in waiting for p in _kernel_parameters(layer)}
    return {name: layer for name, layer in lacking.items() if all(id(p) in arrived for p in _kernel_parameters(layer))}


def _kernel_parameters(layer: nn.Module) -> list[torch.Tensor]:
    """The parameters that the layer computes with; while it waits for weights they are set aside."""
    waiting = get_layerwise_info(layer).kernel_tensors
    parameters = layer.parameters(recurse=False) if waiting is None else waiting[0].values()
    return list(parameters)


def _lacks_weights(layer: nn.Module) -> bool:
    """Whether a layer still waits for parameters; layers that got all of theirs were finished on arrival."""
    parameters = list(layer.parameters(recurse=False))
    info = get_layerwise_info(layer)
    if not parameters or not info.can_load():
        return False
    # The rows that pad a vocabulary are in no checkpoint.
    padded = isinstance(layer, VocabParallelEmbedding)
    expected = 1 if padded else sum(get_tensor_load_numel(parameter) for parameter in parameters)
    return bool(info.load_numel < expected)
