"""What one rank of vime's Megatron model allocates, by torch's memory tracker: cases as JSON in, bytes as JSON out.

Nothing is computed: tensors are fake and collectives return at once, so that a rank of any layout fits anywhere. Only
experts are real, because routing depends on values.
"""

from __future__ import annotations

import contextlib
import json
import sys
import warnings
from types import SimpleNamespace

import numpy as np
import torch
from torch import distributed
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.testing._internal.distributed.fake_pg import FakeStore

from vime_megatron import compat, mcore, noise
from vime_megatron import norm as norm_module
from vime_megatron.config import MegatronConfig
from vime_megatron.layout import plan_layout
from vime_megatron.model import build_model
from vime_megatron.optimizer import build_optimizer
from vime_megatron.packed import lay_out
from vime_megatron.passes import DeviceBatch, Passes
from vime_qwen3.qwen3 import Qwen3
from vime_qwen3.qwen3_moe import Qwen3Moe

HOST = torch.device("cpu")


class DeviceNorm(torch.autograd.Function):
    """Keeps what the fused kernel of a device keeps: the input and a number a row."""

    @staticmethod
    def forward(ctx, hidden, weight, eps):
        ctx.save_for_backward(hidden, weight, torch.empty((*hidden.shape[:-1], 1), dtype=torch.float32))
        return hidden.clone()

    @staticmethod
    def backward(ctx, grad):
        _, weight, _ = ctx.saved_tensors
        return grad.clone(), torch.zeros_like(weight), None


FUSED = SimpleNamespace(rms_norm=lambda hidden, shape, weight, eps: DeviceNorm.apply(hidden, weight, eps))


def measure(case):
    """Parameters, and bytes after the forward pass and at most, parameters left out."""
    norm_module.functional = FUSED if case["fused_norms"] else torch.nn.functional
    family = Qwen3() if case["hf_config"]["model_type"] == "qwen3" else Qwen3Moe()
    geometry = family.geometry(case["hf_config"], None)
    config = MegatronConfig(**case["train"])
    layout = plan_layout(config, geometry)
    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=config.world_size)
    mcore.parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=layout.tensor,
        pipeline_model_parallel_size=layout.pipeline,
        expert_model_parallel_size=layout.expert,
        expert_tensor_parallel_size=layout.expert_tensor,
        create_gloo_process_groups=False,
    )
    mcore.model_parallel_cuda_manual_seed(0, inference_rng_tracker=True)
    ranks = SimpleNamespace(
        layout=layout,
        device=HOST,
        here=SimpleNamespace(stage=0, tensor=0),
        is_first_stage=True,
        is_last_stage=layout.pipeline == 1,
        tensor_group=mcore.parallel_state.get_tensor_model_parallel_group(),
    )
    with contextlib.nullcontext() if geometry.experts else FakeTensorMode(allow_non_fake_inputs=True):
        policy = build_model(geometry, getattr(torch, config.dtype), ranks, config)
        result = _states(config, policy) if case["states"] else _tracked(case, config, geometry, ranks, policy)
    mcore.parallel_state.destroy_model_parallel()
    distributed.destroy_process_group()
    return result


def _states(config, policy):
    """Bytes of weights, gradients and optimizer in the wrapped model."""
    # Checkpoints need these groups, which the stand-in for a network does not have.
    mcore.parallel_state.get_data_parallel_group_gloo = mcore.parallel_state.get_data_parallel_group
    mcore.parallel_state.get_expert_data_parallel_group_gloo = mcore.parallel_state.get_expert_data_parallel_group
    distributed.all_gather_object = _all_the_same
    settings = mcore.DistributedDataParallelConfig(use_distributed_optimizer=True, grad_reduce_in_fp32=True)
    model = mcore.DistributedDataParallel(policy.config, settings, policy)
    optimizer = build_optimizer(model, config, getattr(torch, config.dtype))
    buffers = [*model.buffers, *model.expert_parallel_buffers]
    held = 0
    for part in optimizer.chained_optimizers:
        for group in part.optimizer.param_groups:
            for master in group["params"]:
                state = part.optimizer.state[master]
                kept = [state["exp_avg"], state["exp_avg_sq"]]
                # Without mixed precision the optimizer works on views of the weights.
                kept += [master] if config.dtype != "float32" else []
                held += sum(tensor.numel() * tensor.element_size() for tensor in kept)
    return {
        "weights": sum(buffer.param_data.numel() * buffer.param_data.element_size() for buffer in buffers),
        "gradients": sum(buffer.grad_data.numel() * buffer.grad_data.element_size() for buffer in buffers),
        "optimizer": held,
    }


def _all_the_same(objects, here, group=None):
    objects[:] = [here] * len(objects)


def _tracked(case, config, geometry, ranks, policy):
    parameters = list(policy.parameters())
    for parameter in parameters:
        # In the data-parallel wrapper gradients leave for its buffer one by one.
        parameter.register_post_accumulate_grad_hook(lambda parameter: setattr(parameter, "grad", None))
    passes = Passes(
        policy, policy, ranks, vocab_size=geometry.vocab_size, temperature=1.0, chunk_tokens=config.logprob_chunk_tokens
    )
    lengths = np.array(case["lengths"])
    total = int(lengths.sum())
    positions = torch.cat([torch.arange(length) for length in case["lengths"]])
    offsets = np.concatenate([[0], lengths.cumsum()]).astype(np.int32)
    batch = DeviceBatch(torch.arange(total) % geometry.vocab_size, positions, lay_out(offsets, HOST), total)
    tracker = MemTracker()
    tracker.track_external(policy)
    with tracker:
        hidden = policy(batch.token_ids, batch.position_ids, batch.packed)
        forward = _bytes(tracker, "current")
        if ranks.is_last_stage and case["head"]:
            passes._head(hidden, batch, entropy=False).logprobs.sum().backward()
        else:
            hidden.sum().backward()
    held = sum(parameter.numel() * parameter.element_size() for parameter in parameters)
    count = sum(parameter.numel() for parameter in parameters)
    return {"parameters": count, "forward": forward - held, "peak": _bytes(tracker, "peak") - held}


def _bytes(tracker, state):
    return tracker.get_tracker_snapshot(state)[HOST]["Total"]


def main():
    warnings.simplefilter("ignore")
    compat.install()
    noise.ignore(noise.IN_CALLS)
    # A model is moved to its device by replacing its tensors, which fake ones do not allow.
    torch.nn.Module.to = lambda self, device: self
    json.dump([measure(case) for case in json.load(sys.stdin)], sys.stdout)


if __name__ == "__main__":
    main()
