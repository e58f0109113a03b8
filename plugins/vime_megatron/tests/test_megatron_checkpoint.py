from __future__ import annotations

import random
import resource
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from vime_core.errors import RunFolderError
from vime_grpo.config import GRPOConfig
from vime_grpo.grpo import GRPO
from vime_megatron.checkpoint import random_states, restore_random_states

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SETTINGS: dict[str, Any] = {
    "lr_schedule": "cosine",
    "lr_warmup_steps": 2,
    "total_updates": 8,
    "weight_decay": 0.1,
    "clip_grad": 0.02,
}


@pytest.fixture
def train(samples: list[Any], batch_of: Callable[..., Any]) -> Callable[..., list[dict[str, float]]]:
    """Make updates, each on another part of the samples."""

    def run(backend: Any, updates: range) -> list[dict[str, float]]:
        algorithm = GRPO(GRPOConfig())
        return [
            dict(backend.update(batch_of(samples[update % 3 :], algorithm, max_tokens=40), algorithm).metrics)
            for update in updates
        ]

    return run


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_stopping_and_resuming_changes_no_bit(
    dtype: str,
    model: Any,
    start: Callable[..., Any],
    train: Callable[..., list[dict[str, float]]],
    tmp_path: Path,
    ranks_program: Any,
) -> None:
    backend = start(model, dtype=dtype, **SETTINGS)
    train(backend, range(3))
    backend.save(tmp_path / "saved")
    expected = train(backend, range(3, 7))
    expected_weights = ranks_program.weights(backend)

    backend = start(model, dtype=dtype, **SETTINGS)
    train(backend, range(1))
    backend.load(tmp_path / "saved")
    assert train(backend, range(3, 7)) == expected
    weights = ranks_program.weights(backend)
    assert all(torch.equal(weights[name], tensor) for name, tensor in expected_weights.items())


def test_a_resumed_run_can_be_saved_and_resumed_again(
    model: Any, start: Callable[..., Any], train: Callable[..., Any], tmp_path: Path
) -> None:
    backend = start(model, **SETTINGS)
    train(backend, range(1))
    expected: list[dict[str, float]] = []
    for update in range(1, 5):
        backend.save(tmp_path / str(update))
        expected += train(backend, range(update, update + 1))

    found: list[dict[str, float]] = []
    for update in range(1, 5):
        backend = start(model, **SETTINGS)
        backend.load(tmp_path / str(update))
        found += train(backend, range(update, update + 1))
    assert found == expected


def without_guard(backend: Any, method: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The backend with Megatron's own method of its optimizer."""
    optimizer = type(backend._optimizer.chained_optimizers[0])
    monkeypatch.setattr(optimizer, method, getattr(optimizer, method).__wrapped__)
    return backend


def test_without_state_without_step_nothing_is_loaded(
    model: Any, start: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(model).save(tmp_path / "saved")
    backend = without_guard(start(model), "_set_main_param_and_optimizer_states", monkeypatch)
    with pytest.raises(KeyError, match="step"):
        backend.load(tmp_path / "saved")


def test_without_own_step_counts_a_resumed_run_goes_elsewhere(
    model: Any, start: Callable[..., Any], train: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = start(model, **SETTINGS)
    train(backend, range(2))
    backend.save(tmp_path / "saved")
    expected = train(backend, range(2, 5))
    backend = without_guard(start(model, **SETTINGS), "load_state_dict", monkeypatch)
    backend.load(tmp_path / "saved")
    assert train(backend, range(2, 5)) != expected


def test_saving_before_the_first_update(
    model: Any, start: Callable[..., Any], train: Callable[..., Any], tmp_path: Path
) -> None:
    backend = start(model, **SETTINGS)
    backend.save(tmp_path / "saved")
    expected = train(backend, range(3))
    backend = start(model, **SETTINGS)
    backend.load(tmp_path / "saved")
    assert train(backend, range(3)) == expected


def test_the_reference_stays_that_of_the_model_folder(
    model: Any, start: Callable[..., Any], train: Callable[..., Any], tmp_path: Path, packed: Any
) -> None:
    backend = start(model, keep_reference=True)
    (at_start,) = backend.logprobs([packed])
    train(backend, range(2))
    backend.save(tmp_path / "saved")
    backend = start(model, keep_reference=True)
    backend.load(tmp_path / "saved")
    (reference,) = backend.logprobs([packed], reference=True)
    assert np.array_equal(reference, at_start)


def test_only_the_given_folder_is_written_and_no_process_started(
    model: Any, start: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import multiprocessing

    monkeypatch.chdir(tmp_path)
    start(model).save(tmp_path / "checkpoints" / "trainer")
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoints"]
    assert sorted(path.name for path in (tmp_path / "checkpoints" / "trainer").iterdir()) == ["model", "rank_00000.pt"]
    assert multiprocessing.active_children() == []


def test_random_states_go_on_where_they_were() -> None:
    def draw() -> list[float]:
        return [random.random(), float(np.random.default_rng(np.random.randint(99)).random()), torch.rand(1).item()]

    states = random_states()
    expected = [draw() for _ in range(3)]
    restore_random_states(states)
    assert [draw() for _ in range(3)] == expected


def test_random_states_are_part_of_a_checkpoint(model: Any, start: Callable[..., Any], tmp_path: Path) -> None:
    backend = start(model)
    backend.save(tmp_path / "saved")
    expected = torch.rand(1), random.random()
    backend = start(model)
    backend.load(tmp_path / "saved")
    assert (torch.rand(1), random.random()) == expected


@pytest.mark.parametrize("size", [0, 5000])
def test_a_full_disk_is_told_in_one_line(size: int, model: Any, start: Callable[..., Any], tmp_path: Path) -> None:
    backend = start(model)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        with pytest.raises(RunFolderError, match=r"cannot save to .*saved .* MiB are free there\); make room") as error:
            backend.save(tmp_path / "saved")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "\n" not in str(error.value)
    backend.save(tmp_path / "again")
    start(model).load(tmp_path / "again")


def test_a_checkpoint_of_another_model_is_refused(
    model: Any, make_model: Callable[..., Any], start: Callable[..., Any], tmp_path: Path
) -> None:
    start(make_model(intermediate_size=128)).save(tmp_path / "saved")
    with pytest.raises(RunFolderError, match=r"saved is damaged or of another model .*shape mismatch") as error:
        start(model).load(tmp_path / "saved")
    assert "\n" not in str(error.value)


def test_a_folder_without_a_checkpoint_is_refused(model: Any, start: Callable[..., Any], tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"is damaged or of another model .*No such file") as error:
        start(model).load(tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("file", ["rank_00000.pt", "model/common.pt", "model/.metadata", "model/__0_0.distcp"])
def test_a_damaged_checkpoint_is_refused(file: str, model: Any, start: Callable[..., Any], tmp_path: Path) -> None:
    backend = start(model)
    backend.save(tmp_path / "saved")
    damaged = tmp_path / "saved" / file
    damaged.write_bytes(damaged.read_bytes()[:100])
    with pytest.raises(RunFolderError, match="is damaged or of another model") as error:
        backend.load(tmp_path / "saved")
    assert "\n" not in str(error.value)


def test_a_checkpoint_that_is_no_file_of_torch_is_refused_without_advice(
    model: Any, start: Callable[..., Any], tmp_path: Path
) -> None:
    backend = start(model)
    backend.save(tmp_path / "saved")
    (tmp_path / "saved" / "rank_00000.pt").write_bytes(b"no pickle")
    with pytest.raises(RunFolderError, match=r"is damaged or of another model .*Weights only load failed") as error:
        backend.load(tmp_path / "saved")
    assert "weights_only" not in str(error.value)
