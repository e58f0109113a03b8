import sys

import numpy as np
import pytest

from examples.quickstart import summary
from vime_core.run.folder import RunFolder
from vime_core.run.metrics import MetricsWriter
from vime_core.types import Group, Prompt, Sample, Verdict, VersionSpan


def write_run(path, steps=20, rollouts=True):
    """Reward step/100; greedy accuracy 0.2 -> 0.8, sampled 0.1 -> 0.7."""
    folder = RunFolder.create_at(path)
    folder.write_config({"run": {"name": "quickstart"}})
    writer = MetricsWriter(folder.metrics_file)
    writer.write(0, {summary.GREEDY: 0.2, summary.SAMPLED: 0.1})
    for step in range(1, steps + 1):
        metrics = {summary.REWARD: step / 100, summary.LENGTH: step, summary.DIFFERENCE: 1e-6 if step == 3 else 1e-7}
        if step == steps:
            metrics |= {summary.GREEDY: 0.8, summary.SAMPLED: 0.7}
        writer.write(step, metrics)
        if rollouts:
            folder.write_rollouts(step, [group(step)], {})
    writer.close()
    return folder


def group(step):
    prompt = Prompt("27+45", ({"role": "user", "content": "27+45="},), (1,), "72")
    verdict = Verdict(0.0, "wrong", "62") if step == 1 else Verdict(1.0, "correct", "72")
    sample = Sample(
        prompt_id=prompt.id,
        group_id=f"{step}/0",
        index=0,
        prompt_ids=np.array([1]),
        response_ids=np.array([2]),
        loss_mask=np.array([True]),
        rollout_logprobs=np.array([-0.5], np.float32),
        finish_reason="stop",
        policy_versions=(VersionSpan(step - 1, 0, 1),),
        response_text=f"Answer: {verdict.extracted}",
        verdict=verdict,
    )
    return Group(sample.group_id, prompt, [sample])


def words(text):
    return [" ".join(line.split()) for line in text.splitlines()]


def test_the_numbers_are_those_of_the_run(tmp_path):
    text = words(summary.summarise(write_run(tmp_path / "run")))
    assert text[:5] == [
        "before after",
        "held-out accuracy, greedy 0.200 0.800",
        "held-out accuracy, sampled 0.100 0.700",
        "reward, first 5 and last 10 steps 0.030 0.155",
        "response tokens, first 5 and last 10 steps 3.000 15.500",
    ]
    assert "largest log-prob difference between trainer and engines: 1.0e-06" in text


def test_it_shows_samples_of_the_first_and_the_last_step(tmp_path):
    text = words(summary.summarise(write_run(tmp_path / "run")))
    assert text[text.index("samples of step 1") + 1] == "27+45= Answer: 62 wrong"
    assert text[text.index("samples of step 20") + 1] == "27+45= Answer: 72 correct"


def test_it_ends_with_where_to_look(tmp_path):
    text = words(summary.summarise(write_run(tmp_path / "run")))
    assert f"run folder: {tmp_path}/run" in text
    assert any(line.endswith(f"bin/vime report {tmp_path}/run") for line in text)


def test_a_run_without_rollouts_or_steps_has_a_summary(tmp_path):
    assert (
        "samples" not in summary.summarise(write_run(tmp_path / "no_rollouts", rollouts=False)).split("run folder")[0]
    )
    text = words(summary.summarise(write_run(tmp_path / "no_steps", steps=0)))
    assert "reward, first 5 and last 10 steps - -" in text


@pytest.mark.parametrize(("arguments", "status"), [([], 2), (["nowhere"], 2), (["run"], 0)])
def test_the_command_line(tmp_path, monkeypatch, capsys, arguments, status):
    write_run(tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["summary", *arguments])
    assert summary.main() == status
    streams = capsys.readouterr()
    assert ("held-out accuracy" in streams.out) is (status == 0)
    assert ("error: nowhere is no run folder" in streams.err) is (arguments == ["nowhere"])
