"""Every row of the error table, from the command line: what is printed, and the exit status."""

import json
import os
import re
import subprocess
import sys

import pytest

from vime_core.cli import main
from vime_core.testing.components import OVERRIDES, install_components

BLOCKED = "grpo,qwen3,math_verifier,megatron,vllm,rocm"

REWARD = """
    from vime_core import RewardConfig, RewardEntry, hookimpl

    {decorator}
    def {name}({arguments}):
        return [RewardEntry(name="{entry}", summary="x", config=RewardConfig, factory="a:B"{more})]
"""


def reward(name="vime_rewards", decorator="@hookimpl", arguments="", entry="extra", more=""):
    return REWARD.format(name=name, decorator=decorator, arguments=arguments, entry=entry, more=more)


BROKEN = "plugin extra (extra-dist 1.0) failed: "
SHOWS = "; --traceback shows where"

FAILING = {
    "import failure": ("import nosuchmodule", "ModuleNotFoundError: No module named 'nosuchmodule'"),
    "wrong signature": (
        reward(arguments="registry"),
        "hook vime_rewards has an unknown argument 'registry'; expected vime_rewards()",
    ),
    "misspelt hook": (reward(name="vime_reward"), "there is no hook vime_reward; did you mean vime_rewards()?"),
    "unmarked function": (reward(decorator=""), "function vime_rewards is not marked with @hookimpl"),
    "argument with a default": (
        reward(arguments="limit=3"),
        "hook vime_rewards: argument 'limit' must not have a default; expected vime_rewards()",
    ),
    "exception inside the hook": (
        "from vime_core import hookimpl\n    @hookimpl\n    def vime_rewards():\n        raise KeyError('x')",
        "KeyError: 'x', in hook vime_rewards",
    ),
}
"""Row -> (hooks module, cause)."""


@pytest.fixture
def world(site, monkeypatch):
    """One good component of each kind; the repository's own plugins are blocked."""
    monkeypatch.setenv("VIME_PLUGINS_BLOCK", BLOCKED)
    install_components(site)
    return site


def install(world, source, name="extra"):
    world.install(f"{name}-dist", {name: f"{name}.hooks"}, {f"{name}/hooks.py": "    " + source.strip("\n ")})


def run(capsys, *arguments):
    """(status, lines on standard error); standard output is the configuration, or nothing."""
    status = main(["config", *OVERRIDES, *arguments])
    output = capsys.readouterr()
    assert "Traceback" not in output.out + output.err
    assert bool(output.out) == (status == 0)
    return status, output.err.splitlines()


@pytest.mark.parametrize("row", FAILING)
def test_a_plugin_that_fails_is_one_warning_when_it_is_not_selected(world, capsys, row):
    source, cause = FAILING[row]
    install(world, source)
    assert run(capsys) == (0, [f"warning: {BROKEN}{cause}"])


@pytest.mark.parametrize("row", FAILING)
def test_a_plugin_that_fails_is_exit_2_when_it_is_selected(world, capsys, row):
    source, cause = FAILING[row]
    install(world, source)
    assert run(capsys, "reward=extra") == (2, [f"error: reward 'extra': {BROKEN}{cause}{SHOWS}"])


@pytest.mark.parametrize("row", FAILING)
def test_a_plugin_that_fails_is_exit_2_when_strict(world, capsys, row):
    source, cause = FAILING[row]
    install(world, source)
    status, lines = run(capsys, "plugins.strict=true")
    assert (status, lines) == (2, [f"error: {BROKEN}{cause} (plugins.strict=true){SHOWS}"])


@pytest.mark.parametrize("row", FAILING)
def test_a_plugin_that_fails_is_listed_as_failed(world, capsys, row):
    source, cause = FAILING[row]
    install(world, source)
    assert main(["plugins", "list", "--json"]) == 0
    rows = {row["plugin"]: row for row in json.loads(capsys.readouterr().out)}
    assert (rows["extra"]["status"], rows["extra"]["detail"]) == ("failed", cause)


def test_the_traceback_is_shown_on_request_only(world, capsys):
    install(world, "import nosuchmodule")
    assert main(["config", *OVERRIDES, "reward=extra", "--traceback"]) == 2
    assert "extra/hooks.py" in capsys.readouterr().err


def test_two_entries_of_one_name_are_a_warning_until_the_name_is_selected(world, capsys):
    for name in ("extra", "other"):
        install(world, reward(entry="same"), name)
    both = "reward 'same' is provided by extra (extra-dist 1.0) and other (other-dist 1.0); uninstall one, or block one"
    remedy = " with plugins.block=[other] or VIME_PLUGINS_BLOCK=other"
    assert run(capsys) == (0, [f"warning: {both}{remedy}"])
    assert run(capsys, "reward=same") == (2, [f"error: {both}{remedy}"])
    status, lines = run(capsys, "reward=same", "plugins.block=[other]")
    assert (status, lines) == (0, [])


def test_one_entry_point_of_two_distributions_is_a_warning_until_it_is_selected(world, capsys):
    install(world, reward())
    world.install("fork", {"extra": "fork.hooks"}, {"fork/hooks.py": reward(entry="forked")})
    status, lines = run(capsys)
    assert status == 0
    assert all(line.startswith("warning: reward '") and "extra (fork 1.0)" in line for line in lines)
    [line] = run(capsys, "reward=forked")[1]
    assert line == (
        "error: reward 'forked': plugin 'extra' is declared by extra (extra-dist 1.0) and extra (fork 1.0); uninstall "
        "one, or block one with plugins.block=[fork] or VIME_PLUGINS_BLOCK=fork"
    )


def test_an_unknown_name_is_exit_2_with_the_closest(world, capsys):
    install(world, reward())
    status, [line] = run(capsys, "reward=exrta")
    assert status == 2
    assert re.match(r"error: unknown reward 'exrta'; there are acme, extra\b.*; did you mean extra\?; blocked: ", line)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (", requires=('nosuchmodule',)", "module nosuchmodule is not installed"),
        (", probe=lambda: 'no HIP device'", "no HIP device"),
    ],
)
def test_what_is_unavailable_is_exit_2_with_the_reason_when_it_is_to_be_used(world, capsys, more, reason):
    install(world, reward(more=more))
    line = f"error: reward 'extra' of plugin extra (extra-dist 1.0) is unavailable: {reason}"
    assert run(capsys, "reward=extra", "--validate") == (2, [line])
    assert run(capsys)[0] == 0
    assert main(["plugins", "list", "--json"]) == 0
    [row] = [row for row in json.loads(capsys.readouterr().out) if row["name"] == "extra"]
    assert (row["status"], row["detail"]) == ("unavailable", reason)


@pytest.mark.parametrize("how", ["variable", "setting"])
def test_a_blocked_plugin_is_not_imported_and_cannot_be_selected(world, capsys, monkeypatch, how):
    install(world, "open('/imported', 'w')\n    raise AssertionError('imported')")
    if how == "variable":
        monkeypatch.setenv("VIME_PLUGINS_BLOCK", f"{BLOCKED},extra")
    block = ["plugins.block=[extra]"] if how == "setting" else []
    assert run(capsys, *block) == (0, [])
    status, [line] = run(capsys, "reward=extra", *block)
    assert status == 2
    assert line.startswith("error: unknown reward 'extra'; there are acme")
    assert "; blocked: extra (extra-dist 1.0), " in line


def test_a_broken_unrelated_plugin_changes_nothing_but_one_warning(tmp_path):
    """With the plugins of the repository, in processes of their own."""
    from vime_core.testing.distributions import FakeSite

    def config(folder):
        return subprocess.run(
            [sys.executable, "-m", "vime_core.cli", "config", "--json"],
            env={**os.environ, "PYTHONPATH": str(folder)},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )

    site = FakeSite(tmp_path / "site")
    site.install("extra-dist", {"extra": "extra.hooks"}, {"extra/hooks.py": "1/0"})
    alone, beside = config(tmp_path / "nothing"), config(site.folder)
    assert (beside.returncode, beside.stdout) == (alone.returncode, alone.stdout)
    told = f"warning: {BROKEN}ZeroDivisionError: division by zero"
    assert [line for line in beside.stderr.splitlines() if line not in alone.stderr.splitlines()] == [told]


TWINS = {"extra": reward(entry="same"), "other": reward(entry="same")}

FROM_A_SHELL = {
    **{row: ({"extra": source}, "reward=extra", f"{BROKEN}{cause}{SHOWS}") for row, (source, cause) in FAILING.items()},
    "two entries of one name": (TWINS, "reward=same", "uninstall one, or block one with plugins.block=[other] or"),
    "unknown name": ({"extra": reward()}, "reward=exrta", "did you mean extra?"),
    "unknown name beside a failed plugin": ({"extra": "1/0"}, "reward=exrta", f"{BROKEN}ZeroDivisionError"),
    "module missing": (
        {"extra": reward(more=", requires=('nosuchmodule',)")},
        "reward=extra",
        "reward 'extra' of plugin extra (extra-dist 1.0) is unavailable: module nosuchmodule is not installed",
    ),
    "hardware missing": (
        {"extra": reward(more=", probe=lambda: 'no HIP device'")},
        "reward=extra",
        "reward 'extra' of plugin extra (extra-dist 1.0) is unavailable: no HIP device",
    ),
    "blocked": ({"extra": "1/0"}, "reward=extra plugins.block=[extra]", "blocked: extra (extra-dist 1.0), "),
}
"""Row -> (plugins, what the user types, what is told)"""


@pytest.mark.parametrize("row", FROM_A_SHELL)
def test_vime_train_is_refused_with_one_line(world, row):
    """In a process of its own, as a shell starts it."""
    plugins, typed, told = FROM_A_SHELL[row]
    for name, source in plugins.items():
        install(world, source, name)
    done = subprocess.run(
        [sys.executable, "-m", "vime_core.cli", "train", *OVERRIDES, *typed.split()],
        env={**os.environ, "PYTHONPATH": str(world.folder)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert told in line
