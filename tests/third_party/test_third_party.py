"""A reward and a prompt source of somebody else: a pip package that lives outside the repository.

`vime new` writes it, the files in `reasoning_gym/` fill it in, pip installs it beside the wheels of vime.
"""

import json
import re
import shutil
from pathlib import Path

import pytest

from vime_core.run.metrics import read_metrics

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SETTINGS = (
    *("data=reasoning_gym", "reward=reasoning_gym", "hardware=cpu", "model.path=model"),
    *("rollout.max_prompt_tokens=512", "rollout.max_response_tokens=48"),
)
QUIET = ("-q", "--disable-pip-version-check", "--no-input")

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def before(environment):
    """Versions without the third party's package."""
    return environment.versions()


@pytest.fixture(scope="module")
def package(environment, before):
    """`vime-reasoning-gym`: generated, filled in and installed with what it needs from the package index."""
    told = environment.done(environment.run("vime", "new", "reward", "reasoning_gym"))
    assert told.startswith("wrote ./vime-reasoning-gym\n")
    folder = environment.work / "vime-reasoning-gym"
    for file in ("hooks.py", "config.py", "source.py", "reward.py"):
        shutil.copy(HERE / "reasoning_gym" / file, folder / "vime_reasoning_gym" / file)
    shutil.copy(HERE / "reasoning_gym" / "conformance.py", folder / "tests" / "test_conformance.py")
    change(folder / "pyproject.toml", r"dependencies = \[", 'dependencies = ["reasoning-gym==0.1.25", ')
    environment.done(environment.pip("install", *QUIET, "--no-build-isolation", folder))
    return folder


def change(file, pattern, replacement):
    text, count = re.subn(pattern, replacement, file.read_text())
    assert count == 1, f"{pattern} is {count} times in {file}"
    file.write_text(text)


def test_nothing_of_the_repository_is_in_reach(environment, package):
    program = (
        "import json, sys, importlib.metadata as m\n"
        "names = ['vime_core', *(e.value.split('.')[0] for e in m.entry_points(group='vime'))]\n"
        "print(json.dumps([sys.path, {name: __import__(name).__file__ for name in names}]))"
    )
    path, files = json.loads(environment.done(environment.run("python", "-c", program)))
    assert len(files) == 8
    assert all(Path(file).is_relative_to(environment.site) for file in files.values())
    assert not {str(ROOT), *(str(folder) for folder in ROOT.glob("plugins/*"))} & set(path)


def test_pip_finds_nothing_wrong_with_any_distribution_of_vime(environment, package):
    found = environment.pip("check", "--disable-pip-version-check").stdout.splitlines()
    assert not [line for line in found if "vime" in line]
    assert not [line for line in found if "reasoning" in line]


def test_installing_it_changes_no_version_of_the_cpu_set(environment, before, package):
    after = environment.versions()
    assert {name: after[name] for name in before} == before
    assert after.keys() - before.keys() >= {"vime-reasoning-gym", "reasoning-gym"}
    pins = re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "requirements" / "cpu.txt").read_text(), re.MULTILINE)
    assert len(pins) > 100
    assert {name: after[name.lower()] for name, _ in pins} == dict(pins)


@pytest.mark.full
def test_both_components_are_shown_and_pass_the_tests_of_their_kinds(environment, package):
    shown = json.loads(environment.done(environment.run("vime", "plugins", "show", "reasoning_gym", "--json")))
    [plugin] = shown
    assert (plugin["distribution"], plugin["status"]) == ("vime-reasoning-gym", "ok")
    assert sorted(component["kind"] for component in plugin["components"]) == ["data", "reward"]
    told = environment.done(environment.run("python", "-m", "pytest", "-q", "-p", "no:cacheprovider", package))
    assert re.search(r"^\d+ passed in ", told.splitlines()[-1]), told


def test_a_run_makes_two_real_steps(environment, package):
    environment.done(environment.run("python", HERE / "write_model.py", "model"))
    told = environment.done(
        environment.run(
            *("vime", "train", *SETTINGS, "train.steps=2", "train.lr=1e-3"),
            *("data.train=letter_counting", "data.size=60", "data.system_prompt=''"),
            *("rewards.reasoning_gym.answer=response", "rollout.prompts_per_step=4", "rollout.samples_per_prompt=8"),
        )
    )
    [folder] = environment.work.glob("outputs/*/*")
    assert f"run folder: {folder.relative_to(environment.work)}" in told or f"run folder: {folder}" in told
    assert "prompts: problems 60" in told
    rows = read_metrics(folder / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2]
    assert all(row["train/grad_norm"] > 0 and row["rollout/raw_reward"] > 0 for row in rows)
    assert all(row["train/train_rollout_logprob_abs_diff"] < 1e-4 for row in rows)


def test_a_mistake_in_its_settings_is_one_line(environment, package):
    for override, told in {
        "rewards.reasoning_gym.anwser=tags": "did you mean rewards.reasoning_gym.answer?",
        "data.train=leg_countin": "did you mean leg_counting?",
    }.items():
        refused = environment.run("vime", "config", "--validate", *SETTINGS, override)
        assert (refused.returncode, refused.stdout) == (2, "")
        [line] = refused.stderr.splitlines()
        assert told in line


def test_a_plugin_for_an_older_core_is_named(environment, package):
    environment.done(environment.run("vime", "new", "reward", "stale"))
    folder = environment.work / "vime-stale"
    change(folder / "pyproject.toml", r"vime-core>=[^\"]+", "vime-core<0.1")
    environment.done(environment.pip("install", *QUIET, "--no-deps", "--no-build-isolation", folder))
    try:
        checked = environment.pip("check", "--disable-pip-version-check")
    finally:
        environment.done(environment.pip("uninstall", "-q", "-y", "vime-stale"))
    assert checked.returncode == 1
    [line] = [line for line in checked.stdout.splitlines() if "vime" in line]
    assert line == "vime-stale 0.1.0 has requirement vime-core<0.1, but you have vime-core 0.1.0."
