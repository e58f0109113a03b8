"""`vime generate` and `vime eval` through real engines, with the weights of a folder and of a run's checkpoint."""

import io
import itertools
import json
import os
import signal
import subprocess
from collections import Counter

import numpy as np
import psutil
import pytest

from vime_core.cli.app import main
from vime_core.run.rollouts import read_rollouts

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


@pytest.fixture
def settings(world):
    """A model of random weights, and small engines."""
    limits = ["rollout.max_prompt_tokens=512", "rollout.max_response_tokens=12"]
    return ["hardware=cpu", "reward=[echo]", f"model.path={world.model}", *limits]


def reference_logprobs(model_folder, prompt_ids, response_ids):
    """By transformers, at temperature 1."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt_ids, *response_ids]])).logits[0, len(prompt_ids) - 1 : -1]
    return torch.log_softmax(logits, -1)[torch.arange(len(response_ids)), torch.tensor(response_ids)].numpy()


def test_generate_with_the_weights_of_a_run(world, first_run, tmp_path):
    """Answers come from the checkpoint: their log-probs are those of the exported weights, and of no others."""
    from vime_core.data.tokenizer import Tokenizer

    (tmp_path / "more.jsonl").write_text(json.dumps({"prompt": "from a file"}) + "\n")
    sampling = ["-n", "2", "--temperature", "1", "--max-tokens", "8", "--seed", "7"]
    prompts = ["-p", "hello", "--file", str(tmp_path / "more.jsonl"), "--system", "be brief"]
    finished = world.vime(
        "generate", "--run", str(first_run.folder), *prompts, *sampling, "--json", stderr=subprocess.PIPE
    )
    assert finished.status == 0, finished.output
    rows = [json.loads(line) for line in finished.output.splitlines()]
    assert [(row["prompt"], row["sample"]) for row in rows] == list(itertools.product(range(2), range(2)))
    assert [row["messages"][-1]["content"] for row in rows] == ["hello"] * 2 + ["from a file"] * 2
    assert len({tuple(row["token_ids"]) for row in rows}) == 4
    [export] = (first_run.folder / "export").iterdir()
    tokenizer = Tokenizer(world.model)
    for row in rows:
        ids = tokenizer.encode_chat(row["messages"])
        assert (row["prompt_tokens"], row["response_tokens"]) == (len(ids), len(row["token_ids"]))
        assert row["finish_reason"] == ("length" if len(row["token_ids"]) == 8 else "stop")
        assert row["response"] == tokenizer.decode(row["token_ids"])
        np.testing.assert_allclose(row["logprobs"], reference_logprobs(export, ids, row["token_ids"]), atol=1e-4)
        assert row["logprob"] == pytest.approx(sum(row["logprobs"]))
        untrained = reference_logprobs(world.model, ids, row["token_ids"])
        assert np.abs(np.array(row["logprobs"]) - untrained).max() > 1e-3


def test_eval_counts_what_the_samples_say(world, settings, tmp_path):
    output = tmp_path / "eval"
    arguments = [*settings, "--data", str(world.data), "--max-prompts", "8", "--samples", "3", "--temperature", "1"]
    finished = world.vime(
        "eval",
        *arguments,
        *("rewards.echo.correct_above=0.5", "--k", "1,2", "--output", str(output), "--json"),
        stderr=subprocess.PIPE,
    )
    assert finished.status == 0, finished.output
    told = json.loads(finished.output)
    [result] = told["sets"]
    groups = read_rollouts(output / "rollouts" / "train.parquet")
    rights = [[sample.verdict.status == "correct" for sample in group.samples] for group in groups]
    assert [len(right) for right in rights] == [3] * 8
    assert 0 < sum(map(sum, rights)) < 24
    assert result["accuracy"]["value"] == pytest.approx(np.mean(rights))
    pairs = [any(pair) for right in rights for pair in itertools.combinations(right, 2)]
    assert result["pass_at"]["2"]["value"] == pytest.approx(np.mean(pairs))
    statuses = Counter(sample.verdict.status for group in groups for sample in group.samples)
    assert {name: share for name, share in result["verdicts"].items() if share} == {
        name: count / 24 for name, count in statuses.items()
    }
    assert json.loads((output / "results.json").read_text())["sets"] == told["sets"]
    log = (output / "log.txt").read_text()
    assert all(f" {actor}: " in log for actor in ("driver", "engine-0", "reward pool"))


@pytest.mark.full
def test_ctrl_c_ends_generate_and_leaves_nothing(world, settings):
    command = ["-m", "vime_core.cli", "generate", *settings, "-p", "hello", "-n", "8"]
    process = world.launch([*world.command()[:1], *command])
    for line in process.stdout:
        if line.startswith("starting"):
            break
    tree = psutil.Process(process.pid).children(recursive=True)
    assert tree
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=180)
    assert process.returncode == 130, output
    assert output.splitlines() == ["interrupted"]
    _, alive = psutil.wait_procs(tree, timeout=60)
    assert not alive


@pytest.fixture
def refused(settings, capsys, monkeypatch):
    """Runs a command in this process and returns the line it was refused with."""
    monkeypatch.setattr("vime_core.loop.serving.machines", lambda *_, **__: pytest.fail("a process was started"))

    def run(command, *arguments):
        status = main([command, *settings[:1], "reward=[dapo_math]", *settings[2:], *arguments])
        told = capsys.readouterr().err.strip()
        assert status == 2, told
        assert len(told.splitlines()) == 1
        return told

    return run


def test_what_generate_refuses(refused, first_run, monkeypatch):
    assert "has 600 tokens, more than rollout.max_prompt_tokens=512" in refused("generate", "--raw", "-p", "x" * 600)
    assert "samples at temperature 0 are one and the same" in refused(
        "generate", "-p", "x", "-n", "2", "--temperature=0"
    )
    assert "--n 0: must be at least 1" in refused("generate", "-p", "x", "-n", "0")
    assert "--temperature -1: must be at least 0" in refused("generate", "-p", "x", "--temperature=-1")
    assert "rollout.top_p=2" in refused("generate", "-p", "x", "--top-p", "2")
    assert "--step is the step of a run's checkpoint: add --run RUN" in refused("generate", "-p", "x", "--step", "3")
    assert "/no/run is no run folder" in refused("generate", "-p", "x", "--run", "/no/run")
    assert "holds no checkpoint of step 99" in refused(
        "generate", "-p", "x", "--run", str(first_run.folder), "--step", "99"
    )
    assert "/no/file.txt: cannot be read" in refused("generate", "-f", "/no/file.txt")
    long = refused("generate", "-p", "x", "--max-tokens", "5000")
    assert "rollout.max_response_tokens=5000 (--max-tokens) are" in long
    assert "max_position_embeddings" in long
    monkeypatch.setattr("sys.stdin", io.StringIO("one\n\n" + "x" * 600 + "\n"))
    assert "prompt 1 ('xxx" in refused("generate", "--raw")
    monkeypatch.setattr("sys.stdin", io.StringIO("\n"))
    assert "there is no prompt" in refused("generate")


def test_what_eval_refuses(refused, world, tmp_path):
    data = ["--data", str(world.data)]
    assert "there is no held-out set: give one with --data FILE" in refused("eval")
    assert "/no/file.jsonl: no such file" in refused("eval", "--data", "/no/file.jsonl")
    assert "evals.train: 4 samples at temperature 0" in refused("eval", *data, "--samples", "4")
    assert "pass@9 needs at least 9 samples" in refused("eval", *data, "--samples=4", "--temperature=1", "--k", "1,9")
    assert "argument --k: invalid" in refused("eval", *data, "--k", "many")
    (tmp_path / "old").write_text("")
    assert "is not empty: give a new folder" in refused("eval", *data, "--output", str(tmp_path))
