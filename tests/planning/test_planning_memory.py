"""The arithmetic of `vime plan`: shares, states, phases, search.

Activations are compared with torch's memory tracker where the model is, in plugins/vime_megatron/tests.
"""

import json
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vime_core.config.location import conf_folder
from vime_core.config.schema import DEVICES
from vime_core.models.layout import even_stages
from vime_core.planning.devices import KNOWN
from vime_core.planning.engine import EngineSettings, engine_bytes
from vime_core.planning.layout import TrainLayout
from vime_core.planning.memory import GIB, Request, plan_memory
from vime_core.planning.search import candidates, search, search_more_devices, search_share
from vime_core.planning.shares import largest_part, lay_out, rank_parameters, state_bytes
from vime_qwen3.qwen3 import Qwen3
from vime_qwen3.qwen3_moe import Qwen3Moe


def published(name, family):
    geometry = family.geometry(json.loads(Path(conf_folder() / "models" / name / "config.json").read_text()), None)
    return geometry, family.tensor_map(geometry)


DENSE, DENSE_MAP = published("Qwen3-8B", Qwen3())
SPARSE, SPARSE_MAP = published("Qwen3-30B-A3B", Qwen3Moe())


def request(device="mi355x", *, tensor=2, devices=2, recompute="full", utilization=0.4, **changes):
    plain = {
        "geometry": DENSE,
        "tensor_map": DENSE_MAP,
        "layout": TrainLayout(devices, tensor, tensor > 1, (DENSE.num_layers,), recompute=recompute),
        "dtype": "bfloat16",
        "micro_tokens": 4096,
        "chunk_tokens": 1024,
        "engine": EngineSettings(1, 2, "bfloat16", 4096, 256, utilization, None),
        "memory": KNOWN[device].memory,
        "devices": devices,
        "colocated": True,
        "shared_host": False,
        "bucket": 256 << 20,
    }
    return Request(**{**plain, **changes})


def test_parameters_of_the_published_models_are_those_of_their_cards():
    """8.2 billion (6.95 without embeddings); 30.5 billion, of which 3.3 are at work."""
    one = TrainLayout(1, stage_layers=(36,))
    assert rank_parameters(DENSE, DENSE_MAP, one, 0).total == 8_190_735_360
    held = rank_parameters(SPARSE, SPARSE_MAP, TrainLayout(1, stage_layers=(48,)), 0)
    assert held.total == 30_532_122_624
    assert sum(held.dense) + sum(held.expert) * 8 // 128 == pytest.approx(3.3e9, rel=0.02)


@settings(max_examples=15, deadline=None)
@given(
    tensor=st.sampled_from([1, 2, 4]),
    pipeline=st.integers(1, 5),
    expert=st.sampled_from([1, 2, 8, 32]),
    expert_tensor=st.sampled_from([1, 2]),
)
def test_the_shares_of_all_ranks_are_the_model(tensor, pipeline, expert, expert_tensor):
    stages = even_stages(SPARSE.num_layers, pipeline)
    world = tensor * pipeline * expert * expert_tensor
    layout = TrainLayout(world, tensor, tensor > 1, stages, expert, expert_tensor)
    whole = rank_parameters(SPARSE, SPARSE_MAP, TrainLayout(1, stage_layers=(48,)), 0)
    held = [rank_parameters(SPARSE, SPARSE_MAP, layout, stage) for stage in range(pipeline)]
    assert sum(sum(stage.expert) for stage in held) * expert * expert_tensor == sum(whole.expert)
    replicated = SPARSE.num_layers * (2 * 2048 + 2 * 128 + 128 * 2048) + 2048
    dense = sum(sum(stage.dense) for stage in held)
    assert (dense - replicated) * tensor + replicated == sum(whole.dense)


@given(st.lists(st.integers(1, 500), min_size=1, max_size=20), st.integers(1, 9))
def test_a_buffer_keeps_parameters_apart_and_shares_everything_out(sizes, replicas):
    places = lay_out(sizes, replicas)
    assert [end - start for start, end in places[:-1]] == sizes
    assert all(start % 64 == 0 for start, _ in places[:-1])
    assert all(before[1] <= after[0] for before, after in pairwise(places))
    length = places[-1][1]
    assert length % math.lcm(replicas, 128) == 0
    assert sum(sizes) / replicas <= largest_part(places, replicas) <= length // replicas


def test_states_are_two_four_and_twelve_bytes_a_parameter():
    layout = TrainLayout(2, 2, True, (36,))
    held = rank_parameters(DENSE, DENSE_MAP, layout, 0)
    states = state_bytes(held, layout, "bfloat16")
    assert (states.weights, states.gradients, states.optimizer) == (2 * held.total, 4 * held.total, 12 * held.total)
    shared = state_bytes(held, TrainLayout(8, 2, True, (36,)), "bfloat16")
    assert shared.optimizer == 3 * held.total
    single = state_bytes(held, layout, "float32")
    assert (single.weights, single.optimizer) == (4 * held.total, 8 * held.total)


def test_an_engine_holds_its_share_of_weights_and_of_each_token():
    engine = engine_bytes(DENSE, DENSE_MAP, EngineSettings(1, 2, "bfloat16", 4096, 256, 0.4, None))
    assert engine.token == 2 * 36 * 4 * 128 * 2
    assert engine.weights == pytest.approx(8.19e9, rel=0.001)
    many = engine_bytes(SPARSE, SPARSE_MAP, EngineSettings(1, 8, "bfloat16", 4096, 256, 0.4, None))
    assert many.token == 2 * 48 * 1 * 128 * 2, "four key-value heads on eight devices: each has one"


def test_the_published_setting_fits_where_it_was_published():
    plan = plan_memory(request())
    assert plan.fits
    assert {phase.name for phase in plan.phases} == {"backward pass", "optimizer step", "generating"}
    generating = plan.phases[-1]
    share = {part.name: part.bytes for part in generating.parts}
    engine = share["engine weights"] + share["KV cache"] + share["engine's working set"]
    assert engine == pytest.approx(0.4 * KNOWN["mi355x"].memory)
    assert plan_memory(request("mi300x")).fits


EMBEDDING = 151_936 * 4096 * 2
"""Bytes of the largest tensor of Qwen3-8B."""


def parts(plan, name):
    """Phase -> bytes of a part."""
    return {phase.name: part.bytes for phase in plan.phases for part in phase.parts if part.name == name}


@pytest.mark.parametrize(("bucket", "buffer"), [(256 << 20, EMBEDDING), (4 << 30, 2 << 30)])
def test_push_buffers_on_shared_devices_stay_from_phase_to_phase(bucket, buffer):
    """As `ipc`: two on the trainer's side, each of half the bucket or the largest tensor; an engine copies one."""
    without = plan_memory(request(bucket=bucket))
    plan = plan_memory(request(bucket=bucket, trainer_buffers=2, engine_buffers=1))
    assert parts(plan, "weight push buffers") == {
        "backward pass": 2 * buffer,
        "optimizer step": 2 * buffer,
        "generating": 2 * buffer,
    }
    assert parts(plan, "engine's part of a push") == {"generating": buffer}
    grown = [phase.total - before.total for phase, before in zip(plan.phases, without.phases, strict=True)]
    assert grown == [2 * buffer, 2 * buffer, 3 * buffer]
    assert plan.utilization_range[1] == pytest.approx(
        without.utilization_range[1] - 3 * buffer / KNOWN["mi355x"].memory
    )
    assert not parts(without, "weight push buffers")


def test_an_engine_that_does_not_sleep_is_beside_the_trainer_in_every_phase():
    engine = EngineSettings(1, 2, "bfloat16", 4096, 256, 0.4, None, sleeps=False)
    plan = plan_memory(request(engine=engine))
    for name in ("engine weights", "KV cache", "engine's working set"):
        assert set(parts(plan, name)) == {"backward pass", "optimizer step", "generating"}
        assert len(set(parts(plan, name).values())) == 1
    assert not parts(plan, "sleeping engine")
    assert set(parts(plan_memory(request()), "sleeping engine")) == {"backward pass", "optimizer step"}


def test_push_buffers_on_devices_of_their_own_are_on_either_side():
    """As `nccl`: two on the trainer's side, one and a copy of a bucket on each device of an engine."""
    plan = plan_memory(request(colocated=False, devices=4, trainer_buffers=2, engine_buffers=2))
    assert parts(plan, "weight push buffers") == {"backward pass": 2 * EMBEDDING, "optimizer step": 2 * EMBEDDING}
    assert parts(plan, "engine's part of a push") == {"generating": 2 * EMBEDDING}


def test_push_buffers_on_one_host_are_added_up():
    apart = {"shared_host": True, "colocated": False, "trainer_buffers": 2, "engine_buffers": 2}
    [phase] = plan_memory(request(memory=1 << 40, **apart)).phases
    assert {part.name: part.bytes for part in phase.parts}["weight push buffers"] == (2 + 2 * 2) * EMBEDDING


def test_two_h100_do_not_do_and_four_would():
    asked = request("h100")
    plan = plan_memory(asked)
    assert plan.problems[0].startswith("optimizer step needs")
    assert search(asked) is None
    assert search_share(asked) is None, "less for the engines does not make the optimizer fit"
    more = search_more_devices(asked)
    assert (more.request.devices, more.request.layout.tensor) == (4, 1)
    assert plan_memory(more.request).fits


def test_less_for_the_engines_is_found_where_it_is_enough():
    asked = request("mi300x", utilization=0.9)
    assert not plan_memory(asked).fits
    share = search_share(asked)
    assert share.request.engine.utilization == 0.7
    assert share.utilization_range[1] == pytest.approx(0.711, abs=0.002)


def test_a_cache_too_small_for_one_sequence_is_a_problem():
    plan = plan_memory(request(utilization=0.028))
    assert plan.problems == ("the KV cache does not hold one sequence of 4096 tokens",)


def test_pools_of_their_own_share_no_memory():
    plan = plan_memory(request("h100", tensor=4, devices=8, colocated=False))
    training, _, generating = plan.phases
    assert not {"KV cache", "sleeping engine"} & {part.name for part in training.parts}
    assert "optimizer" not in {part.name for part in generating.parts}
    assert generating.total == pytest.approx(0.4 * KNOWN["h100"].memory)


def test_a_host_holds_all_processes_at_one_time():
    plan = plan_memory(request(shared_host=True, memory=100 * GIB))
    [phase] = plan.phases
    parts = {part.name: part.bytes for part in phase.parts}
    assert (
        parts["weights"]
        == 2
        * state_bytes(
            rank_parameters(DENSE, DENSE_MAP, plan.request.layout, 0), plan.request.layout, "bfloat16"
        ).weights
    )
    assert not plan.fits


def test_the_search_takes_the_least_tensor_parallelism():
    asked = request("mi300x", tensor=8, devices=8)
    best = search(asked)
    for layout in candidates(asked):
        if layout == best.request.layout:
            break
        assert not plan_memory(replace(asked, layout=layout)).fits
    assert best.request.layout.tensor == 1


def test_every_kind_of_device_can_be_chosen():
    assert tuple(KNOWN) == DEVICES
