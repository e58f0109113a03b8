"""`vime plan` against what the model and its optimizer allocate, by torch's memory tracker (see memory_program.py)."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from vime_core.config.location import conf_folder
from vime_core.planning.activations import Micro, activation_bytes
from vime_core.planning.layout import layout_of
from vime_core.planning.shares import rank_parameters, state_bytes
from vime_megatron.config import MegatronConfig
from vime_qwen3.qwen3 import Qwen3
from vime_qwen3.qwen3_moe import Qwen3Moe

PROGRAM = Path(__file__).with_name("memory_program.py")
FAMILIES = {"qwen3": Qwen3(), "qwen3_moe": Qwen3Moe()}


def published(name, **changes):
    return json.loads((conf_folder() / "models" / name / "config.json").read_text()) | changes


def case(hf_config, lengths=(4096,), *, fused_norms=True, head=True, states=False, **train):
    layout = {"dtype": "bfloat16", **train}
    return {
        "hf_config": hf_config,
        "lengths": list(lengths),
        "fused_norms": fused_norms,
        "head": head,
        "states": states,
        "train": layout,
    }


def dense(layers, *arguments, **settings):
    return case(published("Qwen3-8B", num_hidden_layers=layers), *arguments, **settings)


def sparse(layers, *arguments, **settings):
    """Real experts, because routing depends on values: the published widths, fewer experts and a small vocabulary."""
    config = published("Qwen3-30B-A3B", num_hidden_layers=layers, num_experts=16, vocab_size=1024, eos_token_id=1)
    return case(config | {"bos_token_id": None}, *arguments, head=False, **settings)


def measured(cases):
    done = subprocess.run(
        [sys.executable, str(PROGRAM)], input=json.dumps(cases), capture_output=True, text=True, timeout=270
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def estimated(case):
    family = FAMILIES[case["hf_config"]["model_type"]]
    geometry = family.geometry(case["hf_config"], None)
    config = MegatronConfig(**case["train"])
    layout = layout_of(config, geometry, on_device=False)
    lengths = case["lengths"]
    used = activation_bytes(
        geometry,
        layout,
        Micro(sum(lengths), padded(lengths), one_length=len(set(lengths)) == 1),
        dtype=config.dtype,
        chunk_tokens=config.logprob_chunk_tokens,
        fused_norms=case["fused_norms"],
    )
    held = rank_parameters(geometry, family.tensor_map(geometry), layout, 0)
    has_head = case["head"] and layout.pipeline == 1
    peak = max(used.saved + max(used.layer, used.head if has_head else 0), used.embedding)
    return held, used.saved, peak, state_bytes(held, layout, config.dtype)


def padded(lengths):
    """Places of sequences that are padded to the longest of their group: lengths from above 2^(k-1) to 2^k."""
    if len(set(lengths)) == 1:
        return sum(lengths)
    groups = {}
    for length in lengths:
        groups.setdefault(math.ceil(math.log2(length)), []).append(length)
    return sum(len(group) * max(group) for group in groups.values())


def check(cases, tolerance):
    for case, told in zip(cases, measured(cases), strict=True):
        held, saved, peak, states = estimated(case)
        name = f"{case['train']} {case['lengths']}"
        if case["states"]:
            assert told == {
                "weights": states.weights,
                "gradients": states.gradients,
                "optimizer": states.optimizer,
            }, name
            continue
        assert held.total == told["parameters"], name
        assert saved == pytest.approx(told["forward"], rel=tolerance), f"saved: {name}"
        assert peak == pytest.approx(told["peak"], rel=tolerance), f"peak: {name}"


TP2 = {"world_size": 2, "tensor_parallel": 2}


def test_a_plan_is_what_a_rank_allocates():
    """Weights, gradients, optimizer and parameters to the byte, activations within 3 %: Qwen3-8B's widths."""
    check(
        [
            dense(2, states=True, **TP2),
            dense(1, states=True, world_size=4, dtype="float32"),
            dense(2, states=True, world_size=8, tensor_parallel=2, pipeline_parallel=2),
            dense(2),
            dense(2, **TP2, recompute="full"),
            dense(2, (16384,), **TP2, sequence_parallel=False, head=False),
            dense(3, (9000, 3000, 300, 84), recompute="full", head=False),
            dense(2, (3000, 500, 596), recompute="selective", head=False),
            dense(2, dtype="float32", fused_norms=False, head=False),
            sparse(1, (256,)),
            sparse(1, (256,), moe_grouped_gemm=True),
        ],
        tolerance=0.03,
    )


@pytest.mark.full
@pytest.mark.parametrize(
    "whole",
    [
        dense(36, states=True, **TP2),
        dense(36, (5120,), **TP2, recompute="full"),
        dense(36, (5120,), **TP2),
        dense(36, (5120,)),
        dense(36, (2000, 2000, 1000, 120), world_size=2, pipeline_parallel=2, head=False),
        sparse(3, (256,)),
        sparse(2, (256,), recompute="full"),
        sparse(2, (600, 430), moe_grouped_gemm=True),
        sparse(2, (1024, 700), moe_grouped_gemm=True),
        sparse(2, (256,), moe_grouped_gemm=True, recompute="full"),
        sparse(2, (256, 150), dtype="float32"),
    ],
    ids=lambda case: "-".join(f"{key}={value}" for key, value in case["train"].items()),
)
def test_a_plan_is_what_a_rank_allocates_for_the_whole_model(whole):
    check([whole], tolerance=0.03)
