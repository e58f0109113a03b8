"""`NcclSync` with every rank and worker a process of its own: two ranks, and engines with one worker and with two."""

from __future__ import annotations

import importlib.util
import re
import signal
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("nccl_program.py")
WORKERS = [1, 2]


@pytest.fixture(scope="module")
def program():
    """`nccl_program.py`, for its functions."""
    spec = importlib.util.spec_from_file_location("vime_vllm_nccl_program", PROGRAM)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_every_worker_holds_the_bits_of_the_trainer(program):
    """Dense, then with experts, then dense again, in several buckets."""
    pushes = [("dense", 1), ("moe", 2), ("dense", 3)]
    [found] = program.run_jobs([{"workers": WORKERS, "pushes": pushes, "bucket_bytes": 100_000, "deadline_s": 30}])
    sent = [program.tensors(*push) for push in pushes]
    reports = [[i, len(weights), sum(t.nbytes for t in weights.values())] for i, weights in enumerate(sent, 1)]
    assert found["told"] == [reports, [None] * 3], "only rank 0 reports"
    assert found["versions"] == ["3", "3"]
    last = program.digest(sent[0] | sent[1] | sent[2])
    assert found["got"] == [[last], [last, last]]


DEADLINE_S = 6
MID_PUSH = {"path": "/update_weights", "bucket": 1}


@pytest.mark.full
@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ({"path": "/init_weight_transfer_engine", "signal": signal.SIGSTOP}, r"engine-1 \(rank 3\) did not join"),
        ({"path": "/init_weight_transfer_engine", "signal": signal.SIGKILL}, r"engine-1 failed: .*worker 1 died"),
        (MID_PUSH | {"signal": signal.SIGKILL}, r"engine-1 (failed: .*worker 1 died|\(rank 3\) .* bucket 1 )"),
        (MID_PUSH | {"signal": signal.SIGSTOP}, r"engine-1 \(rank 3\) did not take bucket 1 of version 1 "),
    ],
    ids=["never joins", "dies as it joins", "dies mid-push", "stops mid-push"],
)
def test_a_worker_that_hangs_or_dies_ends_the_push_within_the_deadline(program, fault, told):
    fault |= {"engine": 1, "worker": 1, "signal": int(fault["signal"])}
    job = {"workers": WORKERS, "pushes": [("large", 1)], "bucket_bytes": 9 << 20, "deadline_s": DEADLINE_S}
    [found] = program.run_jobs([job | {"fault": fault}])
    line, seconds = found["told"][0][0]
    assert line.startswith("SyncError: weight push: ")
    assert re.search(told, line), line
    assert "\n" not in line
    assert seconds < DEADLINE_S
    assert found["told"][1] != "silent", "the other rank ends too"
    assert found["versions"] == ["default", "default"]
