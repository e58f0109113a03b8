"""What the pages on rewards, rollouts and observers show is there, and works."""

import re
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest

from vime_core.config.compose import compose
from vime_core.run.metrics import METRICS, meaning
from vime_core.testing.samples import make_sample
from vime_core.types import Group, Prompt

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "how-to"
ABSENT = ("code_tests", "two_turn", "dynamic_sampling", "rewards.<name>", "tensorboard")
"""Components that are not installed here: examples, and a reward of the reader's."""


def settings_in(page):
    """What follows `vime train`, or stands alone, in the indented blocks of a page."""
    text = re.sub(r"\\\n\s*", "", (FOLDER / page).read_text())
    lines = [line.strip() for line in re.findall(r"^    (.+)$", text, re.MULTILINE)]
    starts = ("vime train ", "observer=")
    return [line.removeprefix("vime train ").removesuffix("...") for line in lines if line.startswith(starts)]


COMMANDS = [
    (page, command)
    for page in ("rewards.md", "rollouts.md", "watch.md")
    for command in settings_in(page)
    if not any(name in command for name in ABSENT)
]


@pytest.mark.parametrize(("page", "command"), COMMANDS)
def test_a_command_of_a_page_composes(page, command):
    compose([*shlex.split(command), "model.path=/m", *([] if "data.train" in command else ["data.train=/d"])])


def test_there_are_commands_to_test():
    assert {page for page, _ in COMMANDS} == {"rewards.md", "watch.md"}


@pytest.mark.parametrize("page", ["rewards.md", "rollouts.md", "watch.md"])
def test_metrics_and_links_of_a_page_are_there(page):
    text = (FOLDER / page).read_text()
    keys = re.findall(r"`((?:rollout|reward)/[\w/<>]+)`", text)
    known = {re.sub(r"verdict_\w+$", "verdict_<status>", key) for key in METRICS}
    assert [key for key in keys if key not in known and not meaning(key) and "<reason>" not in key] == []
    assert [target for target in re.findall(r"\]\(([\w./-]+)\)", text) if not (FOLDER / target).exists()] == []


def test_the_observer_of_the_page_ends_a_run_when_its_budget_is_spent():
    [source] = re.findall(r"```python\n(.+?)```", (FOLDER / "watch.md").read_text(), re.DOTALL)
    names = {}
    exec(source, names)
    budget = names["Budget"](SimpleNamespace(tokens=12))
    groups = [Group("g", Prompt("p", (), (1,), "1"), [make_sample(2, 3, index=index) for index in range(2)])]
    told = []
    for step in (1, 2):
        budget.groups_scored(step, groups)
        told.append(budget.step_finished(step, {}))
    assert told == [None, "the budget is spent"]
