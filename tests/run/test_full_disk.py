"""What is written when no more fits: each program runs with a limit on the size of its files."""

import json
import subprocess
import sys

import pytest

LIMITED = """
import resource, sys
from pathlib import Path

from vime_core.errors import RunFolderError

folder = Path(sys.argv[1])
def limit(size): resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
"""


@pytest.fixture
def limited(tmp_path):
    """Runs a program that must end with a RunFolderError, and returns its message."""

    def run(program):
        code = f"{LIMITED}\ntry:\n" + "".join(f"    {line}\n" for line in program.strip().splitlines())
        code += "except RunFolderError as error:\n    print(error)\nelse:\n    sys.exit('nothing was refused')\n"
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        assert len(done.stdout.splitlines()) == 1
        return done.stdout, done.stderr

    return run


def test_checkpoint(limited, tmp_path):
    told, _ = limited("""
from vime_core.run.checkpoint import CheckpointStore
store = CheckpointStore(folder, keep_last=1)
(store.begin(1) / "weights").write_bytes(b"w")
store.commit(1, {"step": 1})
(store.begin(2) / "weights").write_bytes(b"w")
limit(100)
store.commit(2, {"step": 2, "long": "x" * 1000})
""")
    assert "cannot write" in told
    assert "step_000002: File too large; make room, then go on from the last checkpoint" in told
    from vime_core.run.checkpoint import CheckpointStore

    store = CheckpointStore(tmp_path, keep_last=1)
    assert store.latest().state == {"step": 1}
    store.clean()
    assert [path.name for path in tmp_path.iterdir()] == ["step_000001"]


def test_metrics(limited, tmp_path):
    told, _ = limited("""
from vime_core.run.metrics import MetricsWriter
writer = MetricsWriter(folder / "metrics.jsonl")
writer.write(1, {"a": 1.0})
limit(30)
try:
    writer.write(2, {"a": 2.0})
finally:
    writer.close()
""")
    assert "metrics.jsonl" in told
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[0]) == {"step": 1, "a": 1.0}
    from vime_core.run.metrics import read_metrics

    assert read_metrics(tmp_path / "metrics.jsonl") == [{"step": 1, "a": 1.0}]


def test_rollouts(limited, tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"before")
    told, _ = limited("""
from vime_core.run.rollouts import write_rollouts
limit(100)
write_rollouts(folder / "a.parquet", [], {})
""")
    assert "a.parquet" in told
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a.parquet": b"before"}


def test_log_is_told_once_and_does_not_end_the_run(limited):
    _, warned = limited("""
import logging
from vime_core.log import log_to
limit(200)
with log_to(folder / "log.txt", "driver"):
    for number in range(20):
        logging.getLogger("vime_core.test").info("a line of some length, number %d", number)
raise RunFolderError("reached the end")
""")
    assert warned.count("log.txt cannot be written: File too large") == 1
    assert "Traceback" not in warned
