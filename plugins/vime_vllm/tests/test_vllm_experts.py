"""Pushes into a real engine of a model with experts, which the CPU backend keeps packed."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace

import pytest
import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from vime_core.types import SamplingParams
from vime_qwen3.qwen3_moe import Qwen3Moe

pytestmark = pytest.mark.engine

CONFIG = {**Qwen3Moe().tiny(), "vocab_size": 120, "moe_intermediate_size": 48, "initializer_range": 0.2}
"""Experts of 48 rows, which the kernel pads to 64; the middle layer is dense."""
PROMPT = [5, 6, 7]
PARAMS = SamplingParams(temperature=1.0, top_p=1.0, top_k=-1, max_tokens=24, stop_token_ids=(), seed=3)


class ByExpert:
    """A model of transformers, with the tensors of its state expert by expert, as in a checkpoint."""

    def __init__(self, seed):
        torch.manual_seed(seed)
        self.model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**CONFIG)).eval()

    def __call__(self, *args):
        return self.model(*args)

    def state_dict(self):
        tensors = {}
        for name, tensor in self.model.state_dict().items():
            match = re.fullmatch(r"(.*\.experts)\.(gate_up|down)_proj", name)
            if match is None:
                tensors[name] = tensor
                continue
            for expert, weight in enumerate(tensor):
                names = ("gate_proj", "up_proj") if match[2] == "gate_up" else ("down_proj",)
                for part, value in zip(names, weight.chunk(len(names)), strict=True):
                    tensors[f"{match[1]}.{expert}.{part}.weight"] = value
        return tensors


@pytest.fixture(scope="module")
def make_model():
    """One with random weights from a seed."""
    return ByExpert


@pytest.fixture(scope="module", params=[1, pytest.param(2, marks=pytest.mark.full)])
def tensor_parallel_size(request):
    """Ranks of the engine."""
    return request.param


@pytest.fixture(scope="module")
def make_context(make_context, tensor_parallel_size, tmp_path_factory):
    """One engine, on the model with experts."""
    folder = tmp_path_factory.mktemp("tiny-moe")
    ByExpert(0).model.save_pretrained(folder)
    geometry = Qwen3Moe().geometry(CONFIG, None)

    def make(log_folder, **config):
        config |= {"num_engines": 1, "tensor_parallel_size": tensor_parallel_size, "max_prompt_tokens": 64}
        return replace(make_context(log_folder, **config), model_path=folder, geometry=geometry)

    return make


def difference(run):
    """How far the engine's log-probs are from transformers'."""
    (completion,) = run.generate([PROMPT], [PARAMS])
    assert [span.version for span in completion.policy_versions] == [run.version]
    return run.difference(PROMPT, completion)


def test_pushes_of_the_same_of_changed_and_of_the_first_weights_again(run):
    for seed in (0, 0, 1, 1, 0):
        run.publish(seed)
        assert difference(run) < 1e-4


def test_experts_that_changed_places_are_seen(run):
    version = len(run.models)
    run.models[version] = run.make_model(version)
    weights = run.models[version].state_dict()
    names = [[name for name in weights if f"layers.0.mlp.experts.{expert}." in name] for expert in (0, 1)]
    swapped = {one: weights[other] for pair in (names, names[::-1]) for one, other in zip(*pair, strict=True)}
    asyncio.run(run.backend.pause())
    run.sync.push(iter((weights | swapped).items()), version)
    asyncio.run(run.backend.resume())
    assert difference(run) > 1e-2
    run.publish(2)
    assert difference(run) < 1e-4


@pytest.mark.ranks
def test_ranks_that_share_matrices_and_experts_out_push_whole_ones(run, layout_program, tmp_path):
    """Tensor and expert parallel on two ranks; `test_layout_pushes.py` has every layout."""
    run.sync.close()
    world = layout_program.World(tmp_path, 2, run.context.run_id)
    try:
        settings = {"tensor_parallel": 2, "expert_parallel": 2}
        world.call("start", run.context.model_path, Qwen3Moe(), CONFIG, settings)
        world.call("connect", run.backend.endpoints())
        version = len(run.models)
        run.models[version] = run.make_model(0)
        asyncio.run(run.backend.pause())
        world.call("push", version)
        asyncio.run(run.backend.resume())
        assert difference(run) < 1e-4
        world.call("stop")
    finally:
        world.close()
        run.sync.connect(run.backend.endpoints())


def test_an_expert_that_is_left_out_fails_the_push(run):
    weights = run.make_model(4).state_dict()
    del weights["model.layers.2.mlp.experts.3.up_proj.weight"]
    asyncio.run(run.backend.pause())
    with pytest.raises(Exception, match=r"the push left out weights of .*layers\.2\.mlp\.experts"):
        run.sync.push(iter(weights.items()), len(run.models))
