import json
import math
import re

import numpy as np
import pytest

from vime_core.errors import RunFolderError
from vime_core.run.metrics import METRICS, MetricsWriter, is_torn, read_metrics, truncate_after

PROMISED = """
step rollout/raw_reward rollout/response_len_mean rollout/response_len_max rollout/truncated_ratio
rollout/zero_std_group_ratio rollout/verdict_correct rollout/verdict_wrong rollout/verdict_unparseable
rollout/verdict_timeout rollout/verdict_error train/loss train/pg_loss train/kl train/entropy train/clip_fraction
train/grad_norm train/lr train/train_rollout_logprob_abs_diff perf/step_time_s perf/rollout_time_s perf/score_time_s
perf/logprob_time_s perf/update_time_s perf/sync_time_s perf/tokens_per_gpu_per_second sync/policy_version sync/bytes
async/staleness_mean async/staleness_max eval/<name>/accuracy
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metrics.jsonl"


@pytest.fixture
def written(path):
    writer = MetricsWriter(path)
    for step in range(5):
        writer.write(step, {"train/loss": step / 2})
    writer.close()
    return path


def test_promised_keys_are_documented():
    assert set(PROMISED.split()) <= METRICS.keys()
    assert all(re.fullmatch(r"[A-Z].*\.", doc) for doc in METRICS.values())


def test_one_object_a_step_is_there_at_once(path):
    writer = MetricsWriter(path)
    writer.write(1, {"a": np.float32(0.5), "b": np.int64(3), "c": 2, "d": np.array(1.5), "step": 9})
    assert path.read_text() == '{"step": 1, "a": 0.5, "b": 3, "c": 2, "d": 1.5}\n'
    writer.close()
    writer.close()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, np.float32("nan")])
def test_what_is_not_finite_is_null_and_reads_as_nan(path, value):
    writer = MetricsWriter(path)
    writer.write(0, {"a": value, "b": 1.0})
    writer.close()
    assert json.loads(path.read_text(), parse_constant=pytest.fail) == {"step": 0, "a": None, "b": 1.0}
    [record] = read_metrics(path)
    assert math.isnan(record["a"])


def test_a_step_is_written_once(written):
    writer = MetricsWriter(written)
    with pytest.raises(ValueError, match="metrics of step 4 after those of step 4"):
        writer.write(4, {})
    writer.write(5, {})
    writer.close()
    assert [record["step"] for record in read_metrics(written)] == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("step", [-1, 0, 2, 4, 9])
def test_truncate_after(written, step):
    lines = written.read_text().splitlines(keepends=True)
    truncate_after(written, step)
    assert written.read_text() == "".join(lines[: step + 1])


@pytest.mark.parametrize("torn", ['{"step": 5, "train', '{"step": 5}', "\x00\x00", '{"step": 5, "train\n'])
def test_a_torn_last_line_is_dropped(written, torn):
    whole = written.read_text()
    assert not is_torn(written)
    written.write_text(whole + torn)
    assert is_torn(written)
    assert [record["step"] for record in read_metrics(written)] == [0, 1, 2, 3, 4]
    writer = MetricsWriter(written)
    writer.write(5, {})
    writer.close()
    assert written.read_text() == whole + '{"step": 5}\n'


def test_truncation_that_dies_leaves_the_file(written, monkeypatch):
    whole = written.read_text()

    def die(*_):
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", die)
    with pytest.raises(RunFolderError, match=r"cannot write .*disk full"):
        truncate_after(written, 1)
    assert written.read_text() == whole
    assert [path.name for path in written.parent.iterdir()] == [written.name]


@pytest.mark.parametrize("line", ["{", "[]", "{}", '{"step": "1"}', '{"step": 1.5}', "", "3"])
def test_a_broken_line_is_named(written, line):
    lines = written.read_text().splitlines()
    written.write_text("\n".join([*lines[:2], line, *lines[2:]]) + "\n")
    with pytest.raises(RunFolderError, match=r"metrics\.jsonl, line 3: no record of metrics"):
        read_metrics(written)
