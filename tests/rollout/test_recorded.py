"""Recorded groups in place of generated ones, and the run folder that they come from."""

import asyncio
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from vime_core.config.schema import RolloutConfig
from vime_core.errors import ConfigError, RunFolderError
from vime_core.rollout.recorded import RecordedCollector
from vime_core.run.config import ReplayConfig
from vime_core.run.folder import RunFolder
from vime_core.run.replay import DRAWN_WITH, Replay
from vime_core.types import Group, Prompt, Sample, Verdict, VersionSpan

CONFIG = {"prompts_per_step": 3, "samples_per_prompt": 2}


def make_group(step, row, *, token=7, verdict=True):
    prompt = Prompt(id=f"p{row}", messages=(), token_ids=(1, 2, token), label="1")
    samples = [
        Sample(
            prompt_id=prompt.id,
            group_id=f"{step}:{row}",
            index=index,
            prompt_ids=np.array(prompt.token_ids),
            response_ids=np.array([3, 4, index]),
            loss_mask=np.ones(3, dtype=bool),
            rollout_logprobs=np.full(3, -1.0, np.float32),
            finish_reason="stop",
            policy_versions=(VersionSpan(step - 1, 0, 3),),
            verdict=Verdict(float(row), "correct") if verdict else None,
        )
        for index in range(2)
    ]
    return Group(f"{step}:{row}", prompt, samples)


@pytest.fixture
def folder(tmp_path):
    made = RunFolder.create_at(tmp_path / "run")
    made.write_config({"rollout": {name: getattr(config(made.path), name) for name in DRAWN_WITH}})
    for step in (1, 2, 3):
        made.write_rollouts(step, [make_group(step, row) for row in range(3)], {})
    return made


def config(path, **other):
    return ReplayConfig(path=str(path), **{**CONFIG, **other})


class DropRow:
    def __init__(self, *rows):
        self._rows = [f"p{row}" for row in rows]

    def keep(self, group):
        return "unwanted" if group.prompt.id in self._rows else None


def collector(folder, *filters, vocab_size=10, steps=3):
    record = Replay(config(folder.path), steps)
    return RecordedCollector(record, filters, RolloutConfig(name="replay", prompts_per_step=3), vocab_size)


def collect(collector, step):
    return asyncio.run(collector.collect(step, policy_version=99))


def test_groups_come_as_they_were(folder):
    collected = collect(collector(folder), 2)
    assert [group.id for group in collected.groups] == ["2:0", "2:1", "2:2"]
    assert [s.verdict.score for group in collected.groups for s in group.samples] == [0, 0, 1, 1, 2, 2]
    assert {span.version for g in collected.groups for s in g.samples for span in s.policy_versions} == {1}
    assert collected.missing == 0
    assert collected.metrics["rollout/raw_reward"] == 1.0
    assert "perf/tokens_per_gpu_per_second" not in collected.metrics


def test_filters_are_applied_anew(folder):
    collected = collect(collector(folder, DropRow(1)), 1)
    assert [group.id for group in collected.groups] == ["1:0", "1:2"]
    assert len(collected.scored) == 3
    assert collected.missing == 1
    assert collected.metrics["rollout/dropped_unwanted"] == 1


def test_dropping_every_group_is_told(folder):
    with pytest.raises(ConfigError, match=r"step 1: the filters dropped all 3 groups \(unwanted 3"):
        collect(collector(folder, DropRow(0, 1, 2)), 1)


def test_tokens_of_another_model_are_refused(folder):
    with pytest.raises(RunFolderError, match="step 1 of the recorded rollouts has token id 7, and the model has 7"):
        collect(collector(folder, vocab_size=7), 1)
    collect(collector(folder, vocab_size=8), 1)


def test_samples_without_a_verdict_are_refused(folder):
    folder.write_rollouts(2, [make_group(2, 0), make_group(2, 1, verdict=False)], {})
    with pytest.raises(RunFolderError, match=r"step_000002\.parquet holds samples without a verdict"):
        collect(collector(folder), 2)


def test_an_empty_step_is_refused(folder):
    folder.write_rollouts(2, [], {})
    with pytest.raises(RunFolderError, match="or none at all"):
        collect(collector(folder), 2)


def test_state_is_of_the_steps_that_were_taken(folder):
    first = collector(folder)
    assert first.state()["steps"] == 0
    collect(first, 1)
    collect(first, 2)
    state = first.state()
    assert state["steps"] == 2
    folder.write_rollouts(3, [make_group(3, row, token=5) for row in range(3)], {})
    collector(folder).restore(state)
    folder.write_rollouts(1, [make_group(1, row, token=5) for row in range(3)], {})
    with pytest.raises(RunFolderError, match="not the rollouts of the checkpoint"):
        collector(folder).restore(state)


def test_state_of_a_prompt_source_is_refused(folder):
    with pytest.raises(RunFolderError, match="not the rollouts of the checkpoint"):
        collector(folder).restore({"epoch": 0, "position": 3})


@pytest.mark.parametrize("name", DRAWN_WITH)
def test_each_setting_must_be_as_recorded(folder, name):
    changed = {"temperature": 0.5, "top_p": 0.9}.get(name, 77)
    with pytest.raises(ConfigError, match=f"recorded with other settings; set rollout.{name}="):
        Replay(config(folder.path, **{name: changed}), 3)


def test_all_steps_must_be_there(folder):
    Replay(config(folder.path), 3)
    with pytest.raises(RunFolderError, match=r"the rollouts of 3 steps and train\.steps=4 .*; set train\.steps=3"):
        Replay(config(folder.path), 4)
    folder.rollout_file(2).unlink()
    with pytest.raises(RunFolderError, match=r"step_000002\.parquet is missing, and later steps are there"):
        Replay(config(folder.path), 3)
    for step in (1, 3):
        folder.rollout_file(step).unlink()
    with pytest.raises(RunFolderError, match="holds no rollouts of step 1"):
        Replay(config(folder.path), 3)


def prompts_file(file):
    pq.write_table(pa.table({"prompt": ["2 + 3 ="], "label": ["5"]}), file)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda file: file.write_bytes(b""), "cannot read rollouts .*step_000002.parquet: .*0 bytes"),
        (lambda file: file.write_bytes(file.read_bytes()[:-9]), "cannot read rollouts .*step_000002.parquet: "),
        (prompts_file, "step_000002.parquet holds no rollouts of a run: it lacks the column prompt_id"),
        (
            lambda file: shutil.copy(file.with_name("step_000003.parquet"), file),
            "2.parquet holds the rollouts of step 3",
        ),
    ],
    ids=["empty", "cut", "prompts", "step"],
)
def test_another_file_in_the_place_of_a_step_is_refused_at_once(folder, spoil, message):
    spoil(folder.rollout_file(2))
    with pytest.raises(RunFolderError, match=message):
        Replay(config(folder.path), 3)
    Replay(config(folder.path), 1)
