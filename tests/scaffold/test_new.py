"""`vime new` writes packages that work untouched."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
import tomllib
from packaging.requirements import Requirement

from examples.quickstart.make_assets import make_assets
from examples.quickstart.warmup import WarmUp
from vime_core import __version__
from vime_core.cli import main
from vime_core.config.slots import SEVERAL, SINGLE
from vime_core.run.metrics import read_metrics
from vime_core.scaffold import KINDS, TEMPLATES, write_package
from vime_core.testing.distributions import FakeSite

PAIR = """
    from contextlib import contextmanager

    from vime_core.plugins.manager import load_plugins
    from vime_core.testing import RolloutBackendSuite, SyncStrategySuite
    from vime_core.testing.suite import suite_for
    from vime_core.testing.suites.sync import Engines


    class InProcess(RolloutBackendSuite):
        in_process = True


    class TestPair(SyncStrategySuite):
        entry = "my_sync"

        @contextmanager
        def engines(self):
            with suite_for(InProcess, load_plugins().find("rollout", "my_rollout"))().running() as backend:
                yield Engines(
                    backend.endpoints(),
                    version=lambda endpoint: backend.engine(endpoint.name).version,
                    weights=lambda endpoint: backend.engine(endpoint.name).weights,
                )
"""
"""The generated sync strategy pushes into the engines of the generated rollout backend."""

LONG = [pytest.param(kind, marks=pytest.mark.full) for kind in KINDS if kind != "reward"]


@pytest.mark.parametrize("kind", ["reward", *LONG])
def test_a_package_installs_passes_its_tests_and_is_checked(kind, environment, tmp_path):
    folder = write_package(kind, f"my_{kind}", tmp_path / "package")
    environment.install(folder)
    tests = environment.run("pytest", "-q", "-p", "no:cacheprovider", "-W", "error", cwd=folder)
    assert tests.returncode == 0, tests.stdout
    assert "skipped" not in tests.stdout.splitlines()[-1]
    shown = environment.run("vime", "plugins", "show", f"my_{kind}", "--json")
    [plugin] = json.loads(shown.stdout)
    assert (plugin["distribution"], plugin["status"]) == (f"vime-my-{kind}", "ok")
    assert [component["kind"] for component in plugin["components"]] == [kind]
    checked = environment.run("vime", "plugins", "check", f"my_{kind}")
    assert checked.returncode == 0, checked.stdout
    assert checked.stdout.splitlines()[-1].startswith("1 component: ")
    assert " 0 failed" in checked.stdout.splitlines()[-1]
    assert ("needs running engines: run the package's own tests" in checked.stdout) == (kind in ("rollout", "sync"))


def test_the_packages_of_all_kinds_pass_their_tests_and_rollout_and_sync_are_a_pair(tmp_path):
    """Without pip, in one process: a break of any template is seen in every run of the tests."""
    site = FakeSite(tmp_path / "site")
    folders = [
        write_package(kind, f"my_{kind}", tmp_path / kind, rollout_backend="my_rollout" if kind == "sync" else None)
        for kind in KINDS
    ]
    for folder in folders:
        project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        site.install(project["name"], project["entry-points"]["vime"], {})
    pair = tmp_path / "pair" / "test_pair.py"
    pair.parent.mkdir()
    pair.write_text(dedent(PAIR))
    path = [site.folder, *folders, tmp_path / "sync" / "tests"]
    options = ("-q", "-p", "no:cacheprovider", "-W", "error", "--import-mode=importlib")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *(folder / "tests" for folder in folders), pair.parent],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout.splitlines()[-1]


@pytest.mark.full
@pytest.mark.timeout(600)
def test_the_train_command_of_the_readme_trains_with_a_generated_pair(environment, tmp_path):
    environment.install(write_package("rollout", "pair_rollout", tmp_path / "rollout"))
    environment.install(write_package("sync", "pair", tmp_path / "sync"))
    make_assets(tmp_path / "assets", 0, WarmUp(steps=3, batch=8, report_every=3))
    [command] = re.findall(r"^    (vime train .+) \.\.\.$", (tmp_path / "sync" / "README.md").read_text(), re.MULTILINE)
    settings = "hardware=cpu model.path=assets/model data.train=assets/train.parquet reward=dapo_math train.steps=2"
    sizes = " ".join(f"rollout.{name}" for name in ("prompts_per_step=4", "samples_per_prompt=2", "num_engines=2"))
    tokens = "rollout.max_prompt_tokens=1280 rollout.max_response_tokens=24"
    done = environment.run("bash", "-c", f"{command} {settings} {sizes} {tokens}", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [row["step"] for row in read_metrics(next(tmp_path.glob("outputs/*/*/metrics.jsonl")))] == [1, 2]


@pytest.mark.parametrize("kind", KINDS)
def test_a_package_is_complete_and_asks_for_this_version(kind, tmp_path):
    folder = write_package(kind, "two_words", tmp_path / "package")
    files = {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}
    common = {"pyproject.toml", "README.md", "tests/test_conformance.py"}
    assert common | {f"vime_two_words/{name}" for name in ("__init__.py", "hooks.py", "config.py", "py.typed")} <= files
    assert not [file for file in files if "{" in file or file.endswith(".jinja")]
    assert not [file for file in files if "{{" in (folder / file).read_text()]
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    assert project["name"] == "vime-two-words"
    assert project["entry-points"] == {"vime": {"two_words": "vime_two_words.hooks"}}
    core = next(need for need in map(Requirement, project["dependencies"]) if need.name == "vime-core")
    assert core.specifier.contains(__version__)
    assert not core.specifier.contains("0.2.0")
    assert "class TwoWords" in "".join(file.read_text() for file in folder.glob("vime_two_words/*.py"))


def test_there_is_a_template_for_each_kind_and_each_kind_is_one_of_the_configuration():
    assert {folder.name for folder in TEMPLATES.iterdir()} == {*KINDS, "common"}
    assert KINDS.keys() <= {*SINGLE, *SEVERAL}


def test_a_name_that_another_kind_has_is_free(tmp_path):
    assert write_package("algorithm", "dapo_math", tmp_path / "package").is_dir()


@pytest.mark.parametrize(("given", "backend"), [([], "mine_rollout"), (["--rollout-backend", "other"], "other")])
def test_a_sync_strategy_says_which_rollout_backend_it_works_with(given, backend, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["new", "sync", "mine", *given]) == 0
    assert f'rollout_backends=frozenset({{"{backend}"}})' in Path("vime-mine/vime_mine/hooks.py").read_text()
    readme = Path("vime-mine/README.md").read_text()
    assert f"vime train rollout={backend} sync=mine sync.probe=false" in readme
    assert f"vime new rollout {backend}\n" in readme


def test_the_command_says_what_to_do_next(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["new", "reward", "demo"]) == 0
    output = capsys.readouterr().out
    assert output == "wrote ./vime-demo\n\n  pip install -e ./vime-demo\n  vime plugins check demo\n"
    assert Path("vime-demo/vime_demo/reward.py").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rewrad", "demo"], "vime new: unknown kind 'rewrad'; did you mean reward?"),
        (["thing", "demo"], "vime new: unknown kind 'thing'; there are reward, algorithm, model, rollout, sync"),
        (["reward"], "vime new: the following arguments are required: NAME; see vime new --help"),
        (
            ["reward", "My-Reward"],
            "vime new: name 'My-Reward' must be lower case letters, digits and underscores, e.g.",
        ),
        (["reward", "1st"], "vime new: name '1st' must be lower case letters, digits and underscores, e.g. st"),
        (["reward", "../x"], "vime new: name '../x' must be lower case letters, digits and underscores, e.g. x"),
        (["reward", ""], "vime new: name '' must be lower case letters, digits and underscores"),
        (["sync", "auto"], "vime new: the name 'auto' is reserved; choose another"),
        (["sync", "core"], "vime new: the name 'core' is reserved; choose another"),
        (["reward", "class"], "vime new: the name 'class' is reserved; choose another"),
        (["reward", "grpo"], "vime new: plugin grpo (vime-grpo"),
        (["reward", "dapo_math"], "vime new: plugin math_verifier (vime-math-verifier"),
        (["sync", "a", "--rollout-backend", "B"], "vime new: name 'B' must be lower case letters, digits and"),
        (["reward", "a", "--rollout-backend", "b"], "vime new: --rollout-backend is for kind sync, not reward; leave"),
        (["reward", "demo", "--folder", "{there}"], "{there} exists; remove it, or give another folder with --folder"),
        (["reward", "demo", "--folder", "{file}/x"], "cannot write {file}/x: Not a directory; give another folder"),
    ],
)
def test_a_mistake_is_one_line_and_exit_2(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    places = {"there": tmp_path / "there", "file": tmp_path / "file"}
    places["there"].mkdir()
    places["file"].touch()
    assert main(["new", *(argument.format(**places) for argument in arguments)]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {message.format(**places)}")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "there"]
