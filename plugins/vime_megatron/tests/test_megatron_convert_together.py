"""`vime convert --processes`: the same weights whatever the number of processes, and nothing when one of them dies."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
import torch
from safetensors.torch import save_file
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from vime_core.cli import main
from vime_core.loop.convert import MAX_SHARD_BYTES, plan_conversion, run_conversion
from vime_core.models.stacked import open_weights
from vime_core.models.tensors import tensor_shapes
from vime_core.plugins.manager import load_plugins
from vime_qwen3.qwen3_moe import Qwen3Moe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DEADLINE_S = 240
KINDS = {"moe": {"family": "qwen3_moe", "vocab_size": 131}, "dense, tied": {"tie_word_embeddings": True}}
LARGE = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 8,
    "vocab_size": 20_000,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "num_experts": 16,
    "moe_intermediate_size": 704,
    "mlp_only_layers": [],
}
"""700 MB in bfloat16: long enough to be caught at it."""

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(300)]


def complete(model: Any, folder: Path) -> Path:
    """A copy of a model's folder, with the tokenizer that a model folder must have."""
    shutil.copytree(model.path, folder)
    (folder / "tokenizer.json").write_text("{}")
    return folder


def convert(processes: int, source: Path, output: Path, model: Path | None = None) -> None:
    """In so many processes; what the progress bar is told adds up to its total."""
    conversion = plan_conversion(load_plugins(), source, output, model=model, processes=processes)
    told: list[int] = []
    run_conversion(conversion, told.append)
    assert sum(told) == conversion.total_bytes
    assert all(count >= 0 for count in told)


def assert_same_weights(folder: Path, source: Path, model: Any) -> None:
    files, expected = (open_weights(path, model.geometry, model.tensor_map) for path in (folder, source))
    names = tensor_shapes(model.geometry, model.tensor_map)
    assert files.tensors.keys() == expected.tensors.keys()
    for (name, found), (_, tensor) in zip(files.load(names), expected.load(names), strict=True):
        assert torch.equal(found, tensor), name


def assert_shared_out(checkpoint: Path, processes: int) -> None:
    """Every process wrote a part, and none more than twice its share."""
    sizes = [file.stat().st_size for file in checkpoint.glob("*.distcp")]
    assert len(sizes) == processes
    assert max(sizes) < 2 * sum(sizes) / processes


def test_two_processes_there_and_back(make_model: Callable[..., Any], tmp_path: Path) -> None:
    model = make_model(**KINDS["moe"])
    source = complete(model, tmp_path / "model")
    convert(2, source, tmp_path / "new" / "checkpoint")
    assert_shared_out(tmp_path / "new" / "checkpoint", 2)
    convert(2, tmp_path / "new" / "checkpoint", tmp_path / "back", source)
    assert_same_weights(tmp_path / "back", source, model)
    assert (tmp_path / "back" / "tokenizer.json").exists()
    assert sorted(path.name for path in tmp_path.rglob("*") if path.name.startswith(".")) == [".metadata"]


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", KINDS)
def test_any_number_of_processes_writes_and_reads_the_same(
    kind: str, make_model: Callable[..., Any], tmp_path: Path
) -> None:
    """What one writes several read and the other way round; a checkpoint's contents do not tell who wrote it."""
    model = make_model(**KINDS[kind])
    source = complete(model, tmp_path / "model")
    contents = []
    for writers, readers in ((1, 4), (4, 3), (3, 1)):
        checkpoint, back = tmp_path / f"written by {writers}", tmp_path / f"read by {readers}"
        command(writers, source, checkpoint)
        assert len(list(checkpoint.glob("*.distcp"))) == writers
        command(readers, checkpoint, back, "--model", source)
        assert_same_weights(back, source, model)
        contents.append(FileSystemReader(checkpoint).read_metadata().state_dict_metadata)
    for one in contents[1:]:
        assert one.keys() == contents[0].keys()
        for key, tensor in contents[0].items():
            if not isinstance(tensor, TensorStorageMetadata):
                continue
            assert (one[key].size, one[key].properties.dtype) == (tensor.size, tensor.properties.dtype)
            assert sorted(chunk.offsets for chunk in one[key].chunks) == sorted(
                chunk.offsets for chunk in tensor.chunks
            )


def command(processes: int, *arguments: object) -> None:
    """The command line, in a process of its own."""
    line = [sys.executable, "-m", "vime_core.cli", "convert", *map(str, arguments), "--processes", str(processes)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert (done.returncode, done.stdout) == (0, f"{arguments[1]}\n"), done.stderr


def test_numbers_that_cannot_be_are_refused_before_a_process_starts(
    model: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vime_core.loop.convert_together.GuardedProcess.start", lambda _: pytest.fail("started"))
    source = complete(model, tmp_path / "model")
    for processes, told in (("0", "must be 1 or more"), ("-2", "must be 1 or more"), ("1000", "give at most 19")):
        assert main(["convert", str(source), str(tmp_path / "x"), "--processes", processes]) == 2
        errors = capsys.readouterr().err
        assert f"--processes {processes} " in errors
        assert told in errors
        assert errors.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@contextmanager
def running(*arguments: object, scratch: Path | None = None) -> Iterator[subprocess.Popen[str]]:
    line = [sys.executable, "-m", "vime_core.cli", "convert", *map(str, arguments)]
    environment = os.environ | ({} if scratch is None else {"TMPDIR": str(scratch)})
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def converting(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The processes that do the work, by rank; waits until there are two."""
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        assert process.poll() is None, process.communicate()
        found = {}
        for child in psutil.Process(process.pid).children(recursive=True):
            words = child.cmdline()
            if words[1:3] == ["-m", "vime_core.loop.convert_process"]:
                found[words[3]] = child
        if len(found) == 2:
            return [found[words] for words in sorted(found, key=lambda words: '"rank": 1' in words)]
        time.sleep(0.02)
    raise AssertionError("no two processes")


def wait_for(pattern: str, folder: Path, process: subprocess.Popen[str]) -> None:
    """Until a file that is being written holds something."""
    end = time.monotonic() + DEADLINE_S
    while not any(file.stat().st_size for file in folder.glob(pattern)):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.002)


def assert_nothing_is_left(folder: Path, workers: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(workers, timeout=20)
    assert not alive
    assert sorted(path.name for path in folder.iterdir()) == ["model"]


def test_a_process_that_is_killed_ends_all(model: Any, tmp_path: Path) -> None:
    with running(complete(model, tmp_path / "model"), tmp_path / "x", "--processes", "2") as process:
        workers = converting(process)
        workers[1].kill()
        output, errors = process.communicate(timeout=60)
    assert (process.returncode, output) == (1, "")
    assert errors == "error: process 1 of 2 was killed by SIGKILL; the others were ended, and nothing was written\n"
    assert_nothing_is_left(tmp_path, workers)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    family = Qwen3Moe()
    config = {**family.tiny(), **LARGE, "dtype": "bfloat16"}
    geometry = family.geometry(config, None)
    folder = tmp_path_factory.mktemp("large") / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")
    shapes = tensor_shapes(geometry, family.tensor_map(geometry))
    weights = {name: torch.randn(shape, dtype=torch.bfloat16) for name, shape in shapes.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.mark.full
@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_that_is_killed_while_it_writes_ends_all(rank: int, large: Path, tmp_path: Path) -> None:
    (tmp_path / "model").symlink_to(large)
    with running(large, tmp_path / "x", "--processes", "2") as process:
        workers = converting(process)
        wait_for(f".x.partial-*/x/__{rank}_0.distcp", tmp_path, process)
        workers[rank].kill()
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert errors == (
        f"error: process {rank} of 2 was killed by SIGKILL; the others were ended, and nothing was written\n"
    )
    assert_nothing_is_left(tmp_path, workers)


@pytest.mark.full
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_all(how: signal.Signals, large: Path, tmp_path: Path) -> None:
    (tmp_path / "model").symlink_to(large)
    with running(large, tmp_path / "x", "--processes", "2") as process:
        workers = converting(process)
        wait_for(".x.partial-*/x/*.distcp", tmp_path, process)
        process.send_signal(how)
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, "interrupted\n")
    assert_nothing_is_left(tmp_path, workers)


@pytest.mark.full
def test_processes_end_with_the_one_that_started_them(large: Path, tmp_path: Path) -> None:
    with running(large, tmp_path / "x", "--processes", "2", scratch=tmp_path) as process:
        workers = converting(process)
        process.kill()
        _, alive = psutil.wait_procs(workers, timeout=20)
    assert not alive
    assert not (tmp_path / "x").exists()


@pytest.mark.full
def test_a_full_disk_is_told_in_one_line(large: Path, tmp_path: Path) -> None:
    line = f"ulimit -f 1000; exec {sys.executable} -m vime_core.cli convert {large} {tmp_path / 'x'} --processes 2"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 2, done.stderr
    assert "cannot write checkpoint x" in done.stderr
    assert "MiB are free there); make room" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.full
def test_what_one_process_cannot_read_is_told_in_one_line(model: Any, tmp_path: Path) -> None:
    source = complete(model, tmp_path / "model")
    convert(2, source, tmp_path / "checkpoint")
    data = tmp_path / "checkpoint" / "__1_0.distcp"
    data.write_bytes(data.read_bytes()[: data.stat().st_size // 2])
    with running(tmp_path / "checkpoint", tmp_path / "x", "--model", source, "--processes", "2") as process:
        _, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 2
    assert "checkpoint is damaged, no checkpoint of Megatron, or of another model" in errors
    assert errors.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint", "model"]


@pytest.mark.full
@pytest.mark.timeout(600)
def test_no_process_holds_more_than_its_buckets(model: Any, large: Path, tmp_path: Path) -> None:
    """Anonymous memory, above what a process takes for a tiny model: imports and the tables of torch."""
    base = highest_memory(complete(model, tmp_path / "tiny"), tmp_path / "tiny checkpoint")
    largest = 20_000 * 1024 * 2
    for arguments in ((large, tmp_path / "checkpoint"), (tmp_path / "checkpoint", tmp_path / "back", "--model", large)):
        used = highest_memory(*arguments) - base
        print(f"{arguments[1].name}: {used >> 20} MiB")
        assert used < 3 * MAX_SHARD_BYTES + largest


def highest_memory(*arguments: object) -> int:
    """The most bytes of anonymous memory that one of two processes has had."""
    most = 0
    with running(*arguments, "--processes", "2") as process:
        workers = converting(process)
        while process.poll() is None:
            for worker in workers:
                most = max(most, anonymous(worker.pid))
            time.sleep(0.005)
        assert process.returncode == 0, process.communicate()
    return most


def anonymous(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon")), 0)
