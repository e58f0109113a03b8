"""Trainers of every layout push into real engines with one and with two ranks, whose answers say which weights arrived.

What an engine should answer it is asked before: with the same weights as one process reads them from the model's
folder, and transformers agrees with that. It answers one request at a time, so the same weights give the same bits.
"""

from __future__ import annotations

import asyncio
import secrets
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from vime_core.models.stacked import open_weights
from vime_core.models.tensors import tensor_shapes
from vime_core.testing.samples import make_sample, make_train_sample
from vime_core.types import Sample, SamplingParams, TrainSample, VersionSpan
from vime_qwen3.qwen3 import Qwen3
from vime_qwen3.qwen3_moe import Qwen3Moe
from vime_vllm.backend import VllmBackend
from vime_vllm.config import ShmConfig
from vime_vllm.sync.shm import ShmSync

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.full, pytest.mark.engine, pytest.mark.ranks, pytest.mark.timeout(600)]

VOCAB = 131
"""Divides by nothing: trainers and engines pad it."""
KINDS = {
    "dense": (Qwen3(), {**Qwen3().tiny(), "num_hidden_layers": 3, "vocab_size": VOCAB}),
    "tied": (Qwen3(), {**Qwen3().tiny(), "num_hidden_layers": 3, "vocab_size": VOCAB, "tie_word_embeddings": True}),
    "moe": (Qwen3Moe(), {**Qwen3Moe().tiny(), "vocab_size": VOCAB}),
}
TENSOR, EXPERT, PIPELINE = ({f"{kind}_parallel": 2} for kind in ("tensor", "expert", "pipeline"))
UNEVEN = {**PIPELINE, "pipeline_layers": [1, 2]}
EMBEDDING, ATTENTION, MLP, EXPERTS = "embedding", "layer.attention.out", "layer.mlp.down", "layer.moe.expert.down"
LAYOUTS = [
    ("dense", "one rank", 1, {}, (MLP, 0, "stale")),
    ("dense", "TP2+SP", 2, TENSOR, (MLP, 1, "swapped")),
    ("dense", "PP2 uneven", 2, UNEVEN, (MLP, 1, "stale")),
    ("dense", "DP2", 2, {}, (ATTENTION, 0, "swapped")),
    ("dense", "TP2xPP2+SP", 4, TENSOR | UNEVEN, (MLP, 3, "stale")),
    ("dense", "DP2xTP2", 4, TENSOR, (ATTENTION, 1, "stale")),
    ("tied", "TP2+SP", 2, TENSOR, (EMBEDDING, 1, "stale")),
    ("tied", "PP2 uneven", 2, UNEVEN, (EMBEDDING, 0, "stale")),
    ("moe", "one rank", 1, {}, (EXPERTS, 0, "swapped")),
    ("moe", "EP2", 2, EXPERT, (EXPERTS, 1, "swapped")),
    ("moe", "TP2+SP", 2, TENSOR, (ATTENTION, 1, "stale")),
    ("moe", "TP2xEP2 ETP1", 2, TENSOR | EXPERT, (EXPERTS, 1, "stale")),
    ("moe", "DP2", 2, {}, (EXPERTS, 0, "stale")),
    ("moe", "TP2xEP2 ETP2", 4, TENSOR | EXPERT | {"expert_tensor_parallel": 2}, (EXPERTS, 3, "swapped")),
    ("moe", "PP2xEP2", 4, PIPELINE | EXPERT, (EXPERTS, 3, "stale")),
]
"""Kind of model, name, ranks, settings, and a fault: role of a parameter, a rank, and what is wrong with its share.

Of copies on several ranks only those of the first of them travel.
"""

WEIGHTS = ("first", "second")
KEY = secrets.token_hex(16)
PROMPTS = ([5, 6, 7], np.random.default_rng(0).permutation(VOCAB).tolist())
"""The longer one sees every row of the embedding."""
PARAMS = SamplingParams(temperature=1.0, top_p=1.0, top_k=-1, max_tokens=24, stop_token_ids=(), seed=3)
BOUND = 1e-4
"""Of log-probs that were computed in other ways."""
CHANGE = 1e-2
"""Other weights change a log-prob by more."""


@dataclass
class Model:
    """Two policies of one shape, as folders and as checkpoints of the trainer."""

    kind: str
    folders: dict[str, Path]
    checkpoints: dict[str, Path]

    @property
    def family(self) -> Any:
        return KINDS[self.kind][0]

    @property
    def config(self) -> dict[str, Any]:
        return KINDS[self.kind][1]

    @property
    def geometry(self) -> Any:
        return self.family.geometry(self.config, None)

    def tensors(self, which):
        """Hugging Face names and tensors, as one process reads them."""
        shapes = tensor_shapes(self.geometry, self.family.tensor_map(self.geometry))
        return open_weights(self.folders[which], self.geometry, self.family.tensor_map(self.geometry)).load(shapes)


class Engines:
    """One engine with one rank and one with two, on one model."""

    def __init__(self, contexts):
        self.backends = [VllmBackend(context) for context in contexts]
        self.version = -1

    def start(self):
        with ThreadPoolExecutor(len(self.backends)) as pool:
            list(pool.map(VllmBackend.start, self.backends))

    @property
    def endpoints(self):
        named = zip(("TP1", "TP2"), self.backends, strict=True)
        return [replace(backend.endpoints()[0], name=name) for name, backend in named]

    def publish(self, push):
        """As the loop does it; what `push(version)` returns."""
        self.version += 1
        for backend in self.backends:
            asyncio.run(backend.pause())
        told = push(self.version)
        for backend in self.backends:
            asyncio.run(backend.resume())
        return told

    def answers(self):
        """Of each engine, to each prompt."""

        async def one_by_one(backend):
            return [await backend.generate(prompt, PARAMS) for prompt in PROMPTS]

        answers = [asyncio.run(one_by_one(backend)) for backend in self.backends]
        for completion in (completion for engine in answers for completion in engine):
            assert completion.policy_versions == (VersionSpan(self.version, 0, PARAMS.max_tokens),)
        return answers

    def close(self):
        for backend in self.backends:
            backend.close()


def same(found, expected):
    """Whether every engine answers with the same tokens and, bit for bit, the same log-probs."""
    return all(
        np.array_equal(one.token_ids, other.token_ids) and np.array_equal(one.logprobs, other.logprobs)
        for engines in zip(found, expected, strict=True)
        for one, other in zip(*engines, strict=True)
    )


def change(found, expected):
    """The least of all engines' largest differences in a log-prob, or inf where all sampled other tokens."""
    by_engine = []
    for engines in zip(found, expected, strict=True):
        pairs = list(zip(*engines, strict=True))
        differences = [
            np.abs(one.logprobs - other.logprobs).max() if np.array_equal(one.token_ids, other.token_ids) else np.inf
            for one, other in pairs
        ]
        by_engine.append(max(differences))
    return min(by_engine)


@dataclass
class Stage:
    """Engines of a kind, the model they are on, and their answers with each of its policies."""

    model: Model
    engines: Engines
    expected: dict[str, Any]


@pytest.fixture(scope="module")
def stages(make_context, worlds, keeper, ray_runtime, tmp_path_factory):
    """One at a time, by kind: engines are slow to start, and too many do not fit."""
    current = {}

    def get(kind):
        if kind not in current:
            end()
            folder = tmp_path_factory.mktemp(f"layouts-{kind}")
            model = write_model(kind, folder, worlds)
            engines = Engines([context(folder, model, keeper, make_context, size) for size in (1, 2)])
            current[kind] = Stage(model, engines, {})
            engines.start()
            current[kind].expected = ask(model, engines)
        return current[kind]

    def end():
        for stage in current.values():
            stage.engines.close()
        current.clear()

    yield get
    end()


def write_model(kind, folder, worlds):
    """Both policies with random weights; one rank saves the checkpoints."""
    model = Model(kind, {}, {})
    world = worlds(1)
    for seed, which in enumerate(WEIGHTS):
        torch.manual_seed(seed)
        policy = AutoModelForCausalLM.from_config(AutoConfig.for_model(**model.config), dtype=torch.float32)
        with torch.no_grad():
            for name, weight in policy.named_parameters():
                if "norm" in name:
                    weight.uniform_(0.5, 1.5)
                else:
                    weight.normal_(0.0, 0.2)
        model.folders[which] = folder / which
        policy.save_pretrained(folder / which)
        model.checkpoints[which] = folder / f"{which}-checkpoint"
        world.call("start", folder / which, model.family, model.config, {})
        world.call("save", model.checkpoints[which])
    world.call("stop")
    return model


def context(folder, model, keeper, make_context, size):
    """For one engine with so many ranks."""
    config = {"num_engines": 1, "max_prompt_tokens": 160, "max_response_tokens": 32, "max_num_seqs": 4}
    made = make_context(folder / f"logs-tp{size}", keeper=keeper.address, tensor_parallel_size=size, **config)
    return replace(made, model_path=model.folders["first"], geometry=model.geometry, run_key=KEY)


def ask(model, engines):
    """The engines' answers with each policy, which transformers confirms."""
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VIME_RUN_ID", secrets.token_hex(4))
        sync = ShmSync(ShmConfig(), rank=0, world_size=1)
    try:
        sync.connect(engines.endpoints)
        for which in WEIGHTS:
            engines.publish(lambda version, which=which: sync.push(model.tensors(which), version))
            found[which] = engines.answers()
            assert same(engines.answers(), found[which]), "the engines are not deterministic"
            policy = AutoModelForCausalLM.from_pretrained(model.folders[which], dtype=torch.float32).eval()
            for answers in found[which]:
                for prompt, completion in zip(PROMPTS, answers, strict=True):
                    assert np.abs(completion.logprobs - logprobs(policy, prompt, completion)).max() < BOUND
    finally:
        sync.close()
    assert change(found["first"], found["second"]) > CHANGE
    return found


def logprobs(policy, prompt, completion):
    """[R] of the response, by transformers."""
    ids = torch.tensor([[*prompt, *completion.token_ids.tolist()]])
    with torch.no_grad():
        found = policy(ids).logits[0].log_softmax(-1)
    return found[torch.arange(len(prompt) - 1, ids.shape[1] - 1), ids[0, len(prompt) :]].numpy()


@pytest.fixture(scope="module")
def worlds(layout_program, tmp_path_factory):
    """The ranks, by number; each number starts once."""
    started, run_id = {}, secrets.token_hex(4)

    def get(size):
        if size not in started:
            started[size] = layout_program.World(tmp_path_factory.mktemp(f"ranks-{size}"), size, run_id)
        return started[size]

    yield get
    for world in started.values():
        world.close()


@pytest.mark.parametrize(
    ("kind", "size", "settings", "fault"),
    [pytest.param(kind, size, settings, fault, id=f"{kind} {name}") for kind, name, size, settings, fault in LAYOUTS],
)
def test_a_layout_pushes_what_one_process_would(kind, size, settings, fault, stages, worlds):
    """The weights it started with, others, the first again; and that a share which is wrong on one rank is seen."""
    stage, world = stages(kind), worlds(size)
    model, engines, expected, checkpoints = stage.model, stage.engines, stage.expected, stage.model.checkpoints
    world.call("start", model.folders["first"], model.family, model.config, settings)
    world.call("connect", engines.endpoints)
    assert same(push(world, engines), expected["first"])
    world.call("load_but", checkpoints["second"], *fault)
    assert change(push(world, engines), expected["second"]) > 1e-3
    world.call("load", checkpoints["second"])
    assert same(push(world, engines), expected["second"])
    world.call("load", checkpoints["first"])
    assert same(push(world, engines), expected["first"])

    world.call("update", train_samples())
    updated = push(world, engines)
    assert change(updated, expected["first"]) > 1e-4
    answers = [pair for engine in updated for pair in zip(PROMPTS, engine, strict=True)]
    for told in world.call("logprobs", [answered(*pair) for pair in answers]):
        for (_, completion), values in zip(answers, told, strict=True):
            assert np.abs(completion.logprobs - values).max() < BOUND
    world.call("stop")


def push(world, engines):
    """Push from all ranks; the engines' answers."""
    report, *others = engines.publish(lambda version: world.call("push", version))
    assert report.version == engines.version
    assert others == [None] * (world.size - 1), "only rank 0 reports"
    return engines.answers()


def train_samples():
    return [
        make_train_sample(make_sample(3 + index, 4 + index % 3, group=f"g{index // 4}", index=index, vocabulary=VOCAB))
        for index in range(8)
    ]


def answered(prompt, completion):
    """An answer as a sample that the trainer can judge."""
    mask = np.ones(len(completion.token_ids), np.bool_)
    sample = Sample(
        prompt_id="p",
        group_id="p",
        index=0,
        prompt_ids=np.asarray(prompt, np.int64),
        response_ids=completion.token_ids,
        loss_mask=mask,
        rollout_logprobs=completion.logprobs,
        finish_reason=completion.finish_reason,
        policy_versions=completion.policy_versions,
    )
    return TrainSample(sample=sample, advantages=np.zeros(len(mask)), loss_mask=mask)
