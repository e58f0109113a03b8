"""`vime plugins show` and `vime plugins check`."""

import json
import re
import sys
from textwrap import dedent

import pytest

from vime_core.cli import main
from vime_core.plugins.manager import load_plugins
from vime_core.testing import RewardSuite
from vime_core.testing.runner import check_component

PARTS = """
    import os, time
    from vime_core.types import Verdict

    class Good:
        def __init__(self, config):
            self.config = config
        def score(self, sample, prompt):
            return Verdict(0.0, "wrong")

    class Crashing(Good):
        def __init__(self, config):
            os._exit(7)

    class Hanging(Good):
        def __init__(self, config):
            time.sleep(3600)
"""

HOOKS = """
    from dataclasses import dataclass
    from vime_core import RewardConfig, RewardEntry, hookimpl

    @dataclass(kw_only=True)
    class Settings(RewardConfig):
        '''For tests.'''
        least: int = 3
        '''The fewest
        that count.'''

    @hookimpl
    def vime_rewards():
        common = dict(summary="for tests", config=Settings)
        return [
            RewardEntry(name="good", factory="checked.parts:Good", **common),
            RewardEntry(name="crashing", factory="checked.parts:Crashing", **common),
            RewardEntry(name="absent", factory="checked.parts:Good", requires=("nosuchmodule",), **common),
        ]
"""


@pytest.fixture
def checked(site, monkeypatch):
    """Rewards that pass, crash, hang and cannot be used; also for child processes."""
    site.install(
        "checked-rewards", {"checked": "checked.hooks"}, {"checked/hooks.py": HOOKS, "checked/parts.py": PARTS}
    )
    monkeypatch.setenv("PYTHONPATH", str(site.folder))
    return site


def test_show_tells_where_a_component_comes_from_and_its_settings(checked, capsys):
    assert main(["plugins", "show", "good"]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    for line in (
        "plugin checked (checked-rewards 1.0)",
        "entry point   checked.hooks",
        "status        ok",
        "reward good: for tests",
        "status      available",
        "choose with 'reward=[good]'",
        "settings    rewards.good.<name>=<value>",
        "least: a whole number, default 3",
        "The fewest that count.",
        "weight: a number, default 1.0",
    ):
        assert line in lines
    assert not [line for line in lines if line.startswith("reward crashing")]


def test_show_of_a_plugin_or_a_distribution_tells_all_components(checked, capsys):
    for name in ("checked", "checked-rewards"):
        assert main(["plugins", "show", name, "--json"]) == 0
        [plugin] = json.loads(capsys.readouterr().out)
        assert (plugin["plugin"], plugin["version"], plugin["entry_point"]) == ("checked", "1.0", "checked.hooks")
        states = {component["name"]: component["status"] for component in plugin["components"]}
        assert states == {"good": "available", "crashing": "available", "absent": "unavailable"}
        [setting] = [item for item in plugin["components"][0]["settings"] if item["name"] == "least"]
        assert setting == {
            "name": "least",
            "type": "a whole number",
            "default": 3,
            "required": False,
            "limits": "",
            "doc": "The fewest that count.",
        }


def test_show_tells_limits_and_what_is_required(checked, capsys):
    assert main(["plugins", "show", "files"]) == 0
    assert "train: text, required" in capsys.readouterr().out
    assert main(["plugins", "show", "acme", "--json"]) == 0
    [plugin] = json.loads(capsys.readouterr().out)
    settings = {item["name"]: item for part in plugin["components"] for item in part["settings"]}
    assert settings["kind"]["limits"] == "one of mean, sum"
    assert settings["clip_ratio"]["limits"] == "more than 0"


def test_show_of_a_plugin_that_failed_or_is_blocked_tells_why(checked, capsys, monkeypatch):
    checked.install("broken", {"broken": "broken.hooks"}, {"broken/hooks.py": "1/0"})
    assert main(["plugins", "show", "broken"]) == 0
    assert "status        failed: ZeroDivisionError: division by zero" in capsys.readouterr().out
    assert main(["plugins", "show", "grpo"]) == 0
    assert "status        blocked" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show"], "vime plugins show: what? give a name; vime plugins list shows all"),
        (["show", "goood"], "there is no plugin, distribution or component 'goood'; did you mean good?"),
        (
            ["show", "zzzzzz"],
            "there is no plugin, distribution or component 'zzzzzz'; vime plugins list shows what there",
        ),
        (["check", "goood"], "there is no plugin, distribution or component 'goood'; did you mean good?"),
        (["check", "grpo"], "plugin grpo (vime-grpo) is blocked and cannot be checked"),
        (["check", "good", "--deadline", "soon"], "vime plugins: argument --deadline: invalid float value: 'soon'"),
        (["list", "good"], "vime plugins list takes no name; vime plugins show good describes it"),
    ],
)
def test_a_mistake_is_one_line_and_exit_2(checked, capsys, arguments, message):
    assert main(["plugins", *arguments]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {message}")


def test_check_runs_the_suite_and_tells_the_result(checked, capsys):
    assert main(["plugins", "check", "good"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("passed  reward good (checked): ")
    count = len([name for name in dir(RewardSuite) if name.startswith("test_")])
    assert lines[-1] == f"1 component: {count} passed, 0 failed"


def test_check_counts_the_tests_that_need_engines_and_says_where_they_run(checked, capsys):
    checked.install(
        "rollouts",
        {"rollouts": "rollouts.hooks"},
        {
            "rollouts/hooks.py": """
                from vime_core import RolloutBackendEntry, RolloutConfig, hookimpl

                @hookimpl
                def vime_rollout_backends():
                    factory = "vime_core.testing.engines:InProcessBackend"
                    return [RolloutBackendEntry(name="here", summary="x", config=RolloutConfig, factory=factory)]
            """
        },
    )
    assert main(["plugins", "check", "here"]) == 0
    lines = capsys.readouterr().out.splitlines()
    needed = "needs running engines: run the package's own tests, which set `in_process` or replace `running`"
    assert lines[-2] == f"  8 skipped: {needed}"
    assert lines[-1] == f"1 component: 8 passed, 0 failed, 8 skipped ({needed})"


def test_a_probe_that_raises_fails_the_check(checked, capsys):
    hooks = HOOKS.replace('requires=("nosuchmodule",)', "probe=lambda: 1 / 0")
    (checked.folder / "checked" / "hooks.py").write_text(dedent(hooks))
    assert main(["plugins", "check", "absent"]) == 1
    output = capsys.readouterr().out
    cause = "the probe raises ZeroDivisionError: division by zero; it must return why absent is unavailable, or None"
    assert f"  FAILED setup: {cause}" in output
    assert output.splitlines()[-1].startswith("1 component: 0 passed, 1 failed, ")


def test_an_exit_in_a_reward_is_told_in_whole_lines_and_ends_the_rest(checked, capsys):
    parts = checked.folder / "checked" / "parts.py"
    parts.write_text(parts.read_text().replace('return Verdict(0.0, "wrong")', "os._exit(7)"))
    assert main(["plugins", "check", "good"]) == 1
    output = capsys.readouterr().out
    [line] = [line for line in output.splitlines() if "the process ended" in line]
    told = line.partition("FAILED test_sample_and_prompt_are_left_as_they_are: the process ended with status 7: ")[2]
    assert re.match(r"it printed nothing$|scoring process \d+ ended with exit status 7", told), output
    [missing] = [line for line in output.splitlines() if line.startswith("  not run: ")]
    assert missing.endswith("test_scoring_leaves_no_threads_and_no_signal_handlers, test_the_examples_get_their_status")
    assert output.splitlines()[-1].endswith(" 3 not run")


def test_check_of_a_plugin_goes_on_after_a_crash(checked, capsys):
    assert main(["plugins", "check", "checked", "--json"]) == 1
    done = {item["name"]: item for item in json.loads(capsys.readouterr().out)}
    outcomes = {name: item["outcome"] for name, item in done.items()}
    assert outcomes == {"good": "passed", "crashing": "failed", "absent": "skipped"}
    [crash] = [result for result in done["crashing"]["results"] if result["outcome"] == "failed"]
    assert crash["test"] == "test_the_component_has_the_methods_of_its_kind"
    assert crash["detail"] == "the process ended with status 7: it printed nothing"
    reasons = {result["detail"] for result in done["absent"]["results"]}
    assert reasons == {"absent is unavailable: module nosuchmodule is not installed"}


def test_a_component_that_hangs_is_ended_at_the_deadline(checked):
    hooks = HOOKS.replace("checked.parts:Crashing", "checked.parts:Hanging").replace("crashing", "hanging")
    (checked.folder / "checked" / "hooks.py").write_text(dedent(hooks))
    done = check_component(load_plugins().find("reward", "hanging"), 15)
    assert done.outcome == "failed"
    [late] = [result for result in done.results if result.outcome == "failed"]
    assert late.detail == "not finished after 15 s"
    rest = done.results[done.results.index(late) + 1 :]
    assert {result.outcome for result in rest} == {"not run"}
    names = {name for name in dir(RewardSuite) if name.startswith("test_")}
    assert {result.test for result in done.results} == names


def test_check_fails_on_a_fault_and_shows_where_on_request(checked, capsys):
    parts = checked.folder / "checked" / "parts.py"
    parts.write_text(parts.read_text().replace('Verdict(0.0, "wrong")', "Verdict(float(id(sample)), 'wrong')"))
    assert main(["plugins", "check", "good", "--traceback"]) == 1
    output = capsys.readouterr().out
    assert "failed  reward good (checked): " in output
    assert "  FAILED test_the_same_response_gets_the_same_verdict: the second verdict on ''" in output
    assert "Nonconformance" in output


def test_check_of_a_plugin_that_failed_or_shares_a_name_fails(checked, capsys):
    checked.install("broken", {"broken": "broken.hooks"}, {"broken/hooks.py": "1/0"})
    assert main(["plugins", "check", "broken"]) == 1
    assert "  FAILED load: ZeroDivisionError: division by zero" in capsys.readouterr().out
    checked.install("hollow", {"hollow": "hollow.hooks"}, {"hollow/hooks.py": ""})
    assert main(["plugins", "check", "hollow"]) == 0
    assert "1 skipped: registers no component" in capsys.readouterr().out
    twin = HOOKS.replace("checked.parts", "twin.parts")
    checked.install("twin", {"twin": "twin.hooks"}, {"twin/hooks.py": twin})
    assert main(["plugins", "check", "good"]) == 1
    assert "FAILED name: reward 'good' is provided by checked (checked-rewards 1.0) and twin" in capsys.readouterr().out


def test_a_check_that_cannot_begin_is_a_failure(checked, monkeypatch):
    registered = load_plugins().find("reward", "good")
    monkeypatch.setattr(sys, "executable", "/bin/false")
    checked_component = check_component(registered, 20)
    [result] = checked_component.results
    assert (result.test, result.detail) == ("start", "the process ended with status 1: it printed nothing")
    assert checked_component.outcome == "failed"
