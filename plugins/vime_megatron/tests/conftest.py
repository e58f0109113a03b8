"""Models, batches and backends for the tests of this plugin; each slow thing is made once."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from vime_core.accelerators.cpu import CpuAccelerator
from vime_core.config.schema import AcceleratorConfig
from vime_core.data.batching import build_update, pack
from vime_core.plugins.interfaces import TrainContext
from vime_core.testing.samples import make_sample, make_train_sample
from vime_megatron import noise
from vime_megatron.config import MegatronConfig
from vime_qwen3.qwen3 import Qwen3
from vime_qwen3.qwen3_moe import Qwen3Moe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import ModuleType

    from transformers import PreTrainedModel

    from vime_core.models.geometry import ModelGeometry, TensorRule
    from vime_core.plugins.interfaces import Algorithm
    from vime_core.types import MicroBatch, TrainSample, UpdateBatch
    from vime_megatron.backend import MegatronBackend

HERE = Path(__file__).parent
VOCABULARY = 128


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out the warnings that `MegatronBackend.start` leaves out in a trainer process."""
    for item in items:
        if HERE in item.path.parents:
            for pattern in noise.IN_CALLS:
                item.add_marker(pytest.mark.filterwarnings(f"ignore:{pattern.replace(':', '.')}"))


@dataclass(frozen=True)
class Model:
    """A Hugging Face folder with random weights."""

    path: Path
    geometry: ModelGeometry
    tensor_map: Sequence[TensorRule]

    def transformers(self) -> PreTrainedModel:
        """The same model in transformers, float32."""
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM.from_pretrained(self.path, dtype=torch.float32, attn_implementation="sdpa").eval()


@pytest.fixture(scope="session")
def ranks_program() -> ModuleType:
    """`ranks_program.py`, for its functions."""
    return load("ranks_program")


@pytest.fixture(scope="session")
def layouts() -> ModuleType:
    """`layouts.py`, for its functions."""
    return load("layouts")


def load(name: str) -> ModuleType:
    """A module of this folder, which is no package."""
    spec = importlib.util.spec_from_file_location(f"vime_megatron_{name}", HERE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def make_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Model]:
    """Write a model with its family's tiny configuration, changed by keyword arguments; `family` is qwen3's."""
    made: dict[str, Model] = {}

    def make(**changes: Any) -> Model:
        key = json.dumps(changes, sort_keys=True)
        if key not in made:
            made[key] = write_model(tmp_path_factory.mktemp("model"), changes)
        return made[key]

    return make


def write_model(folder: Path, changes: dict[str, Any]) -> Model:
    """Write a model with random weights, see `make_model`."""
    from transformers import AutoConfig, AutoModelForCausalLM

    family = Qwen3Moe() if changes.get("family") == "qwen3_moe" else Qwen3()
    config = {**family.tiny(), **{key: value for key, value in changes.items() if key != "family"}}
    shard = config.pop("max_shard_size", "5GB")
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config), dtype=torch.float32)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight.uniform_(0.5, 1.5)
            else:
                weight.normal_(0.0, 0.08)
    model.save_pretrained(folder, max_shard_size=shard)
    (folder / "config.json").write_text(json.dumps(config))
    geometry = family.geometry(config, None)
    return Model(folder, geometry, family.tensor_map(geometry))


@pytest.fixture(scope="session")
def model(make_model: Callable[..., Model]) -> Model:
    """The family's tiny model."""
    return make_model()


@pytest.fixture(scope="session")
def moe_model(make_model: Callable[..., Model]) -> Model:
    """The tiny model with experts."""
    return make_model(family="qwen3_moe")


@pytest.fixture(scope="session")
def make_context() -> Callable[..., TrainContext]:
    """`train_context`."""
    return train_context


def train_context(model: Model, **settings: Any) -> TrainContext:
    """A context for one rank; keyword arguments are settings, or fields of the context."""
    fields = {
        "temperature": 1.0,
        "keep_reference": False,
        "total_updates": 10,
        **{name: settings.pop(name) for name in ("temperature", "keep_reference", "total_updates") if name in settings},
    }
    config = MegatronConfig(**{"dtype": "float32", "lr": 1e-3, "logprob_chunk_tokens": 16, **settings})
    return TrainContext(
        rank=0,
        world_size=config.world_size,
        config=config,
        model_path=model.path,
        geometry=model.geometry,
        tensor_map=model.tensor_map,
        accelerator=CpuAccelerator(AcceleratorConfig()),
        device="cpu",
        seed=0,
        **fields,
    )


@pytest.fixture
def start(process_group: None, make_context: Callable[..., TrainContext]) -> Iterator[Callable[..., MegatronBackend]]:
    """Start a backend in this process, closing the one before: Megatron knows one set of ranks a process."""
    from vime_megatron.backend import MegatronBackend

    running: list[MegatronBackend] = []

    def begin(model: Model, **settings: Any) -> MegatronBackend:
        if running:
            running.pop().close()
        backend = MegatronBackend(make_context(model, **settings))
        running.append(backend)
        backend.start()
        return backend

    yield begin
    for backend in running:
        backend.close()


@pytest.fixture(scope="session")
def samples() -> list[TrainSample]:
    """`train_samples`."""
    return train_samples()


def train_samples() -> list[TrainSample]:
    """Two groups of samples of many lengths; one is all masked, one has holes in its mask, one no response."""
    lengths = [(3, 7), (5, 1), (4, 12), (1, 2), (6, 9), (2, 4), (4, 3), (9, 5), (3, 0)]
    made = []
    for index, (prompt, response) in enumerate(lengths):
        mask = np.ones(response, np.bool_)
        if index == 2:
            mask[3:6] = False
        if index == 5:
            mask[:] = False
        sample = make_sample(
            prompt, response, group=f"group{index // 4}", index=index % 4, mask=mask.tolist(), vocabulary=VOCABULARY
        )
        made.append(make_train_sample(sample))
    return made


def one_batch(
    samples: Sequence[TrainSample], algorithm: Algorithm, max_tokens: int = 4096, **options: Any
) -> UpdateBatch:
    """The samples as an update of one rank."""
    batches = build_update(samples, algorithm, max_tokens=max_tokens, ranks=1, **options)
    assert batches is not None
    return batches[0]


@pytest.fixture(scope="session")
def batch_of() -> Callable[..., UpdateBatch]:
    """`one_batch`."""
    return one_batch


@pytest.fixture(scope="session")
def packed(samples: list[TrainSample]) -> MicroBatch:
    """All samples in one micro-batch."""
    return pack(samples, range(len(samples)))
