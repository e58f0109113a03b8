"""The commands of the tutorial, as they are typed, in an environment of their own."""

import re
from pathlib import Path

import pytest

from examples.quickstart.make_assets import make_assets
from vime_core.run.metrics import read_metrics

TUTORIAL = Path(__file__).resolve().parents[2] / "docs" / "tutorial" / "first-plugin.md"
COMMANDS = re.findall(r"^\$ (.+)$", TUTORIAL.read_text(), re.MULTILINE)


def test_the_tutorial_shows_the_whole_way():
    assert [" ".join(command.split()[:3]) for command in COMMANDS] == [
        "vime new reward",
        "pip install -e",
        "vime plugins show",
        "vime plugins check",
        "pytest -q vime-demo",
        "vime train reward=demo",
        "vime config reward=demo",
    ]


@pytest.mark.full
@pytest.mark.timeout(900)
def test_every_command_of_the_tutorial_works_as_typed(environment, tmp_path):
    (tmp_path / "examples" / "quickstart").mkdir(parents=True)
    make_assets(tmp_path / "examples" / "quickstart" / "assets", 0)
    outputs = {}
    for command in COMMANDS:
        typed, _, exit_status = command.partition(" # exit ")
        # Without network: hatchling is there already, and so is vime-core.
        offline = {"PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1", "PIP_NO_BUILD_ISOLATION": "0"}
        done = environment.run("bash", "-c", typed, cwd=tmp_path, timeout=600, **offline)
        assert done.returncode == int(exit_status or 0), f"{typed}\n{done.stdout}\n{done.stderr}"
        outputs[" ".join(typed.split()[:2])] = done.stdout + done.stderr
    assert "did you mean rewards.demo.wrong_score?" in outputs["vime config"]
    [metrics] = tmp_path.glob("outputs/*/*/metrics.jsonl")
    steps = read_metrics(metrics)
    assert [row["step"] for row in steps] == [1, 2]
    rewards = [row["rollout/raw_reward"] for row in steps]
    assert all(-1 < reward < 1 for reward in rewards), f"some answers are right and some are wrong, but {rewards}"
