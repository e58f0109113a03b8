"""The standard tests, for the components of the core itself."""

import pytest

from vime_core.plugins.manager import load_plugins
from vime_core.testing import (
    AcceleratorSuite,
    ObserverSuite,
    PromptSourceSuite,
    RewardSuite,
    RolloutBackendSuite,
    RolloutFunctionSuite,
    SyncStrategySuite,
    TrackerSuite,
    TrainBackendSuite,
)

COVERED = set()


def covers(suite):
    COVERED.add((suite.group, suite.entry))
    return suite


@covers
class TestCpu(AcceleratorSuite):
    entry = "cpu"


@covers
class TestCuda(AcceleratorSuite):
    entry = "cuda"


@covers
class TestFiles(PromptSourceSuite):
    entry = "files"


class TestFilesInOrder(PromptSourceSuite):
    entry = "files"
    settings = {"shuffle": False}


@covers
class TestLengthPenalty(RewardSuite):
    entry = "length_penalty"


@covers
class TestStopWhen(ObserverSuite):
    entry = "stop_when"


@covers
class TestSingleTurn(RolloutFunctionSuite):
    entry = "single_turn"


@covers
class TestTensorBoard(TrackerSuite):
    entry = "tensorboard"


@covers
class TestWandb(TrackerSuite):
    entry = "wandb"


@covers
class TestNoTraining(TrainBackendSuite):
    entry = "none"


@covers
class TestReplay(RolloutBackendSuite):
    entry = "replay"


@covers
class TestNoSync(SyncStrategySuite):
    entry = "none"


def test_every_component_of_the_core_is_covered():
    core = {(r.entry.group, r.entry.name) for r in load_plugins().registered if r.plugin.name == "core"}
    assert core == COVERED


@pytest.mark.parametrize("plugin", ["grpo", "qwen3", "math_verifier", "megatron", "vllm", "rocm"])
def test_every_plugin_of_the_repository_uses_the_kit(plugin, request):
    file = request.config.rootpath / "plugins" / f"vime_{plugin}" / "tests" / f"test_{plugin}_conformance.py"
    text = file.read_text()
    entries = {r.entry.name for r in load_plugins().registered if r.plugin.name == plugin}
    assert entries
    assert all(f'entry = "{name}"' in text for name in entries)
