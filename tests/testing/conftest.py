"""Components that are right, and many that are wrong in one way: `broken/`, installed as one distribution."""

from __future__ import annotations

import ast
import json
import re
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from vime_core.plugins.manager import load_plugins
from vime_core.testing import SUITES
from vime_core.testing.distributions import FakeSite
from vime_core.testing.engines import engine_at
from vime_core.testing.runner import run_suite
from vime_core.testing.suite import suite_for
from vime_core.testing.suites import RolloutBackendSuite, SyncStrategySuite
from vime_core.testing.suites.sync import Engines

FOLDER = Path(__file__).parent / "broken"

KINDS = {
    "accelerators": "accelerator",
    "algorithms": "algorithm",
    "filters": "filter",
    "models": "model",
    "observers": "observer",
    "prompt_sources": "data",
    "rewards": "reward",
    "rollout_backends": "rollout",
    "rollout_functions": "rollout_function",
    "sync_strategies": "sync",
    "trackers": "tracker",
    "train_backends": "train",
}
"""Module of `broken/` -> configuration key of the kind."""

HOOKS = """
import json
from dataclasses import dataclass
from pathlib import Path

from omegaconf import MISSING

from vime_core import hookimpl
from vime_core.data.config import FilesConfig
from vime_core.plugins.kinds import HOOK_ENTRIES, config_base

NAMES = json.loads((Path(__file__).parent / "names.json").read_text())


@dataclass(kw_only=True)
class Settings(FilesConfig):
    name: str = MISSING


def register(hook, module):
    entry = HOOK_ENTRIES[hook]
    config = Settings if module == "prompt_sources" else config_base(entry)

    def implementation():
        return [
            entry(name=name, summary="for tests", config=config, factory=f"broken.{module}:{factory}")
            for name, factory in NAMES[module].items()
        ]

    implementation.__name__ = hook
    globals()[hook] = hookimpl(implementation)


for module in NAMES:
    register(f"vime_{module}", module)
"""


@dataclass(frozen=True)
class Mistake:
    """One broken component."""

    kind: str
    name: str
    """Of the entry."""
    test: str
    """The test that must find it."""
    what: str

    def __str__(self):
        return f"{self.kind}-{self.name}"


def entry_name(class_name):
    return re.sub(r"(?<!^)(?=[A-Z])", "_", class_name).lower()


def read_mistakes():
    """What the docstrings of `broken/` say; without importing it."""
    mistakes, names = [], {}
    for module, kind in KINDS.items():
        tree = ast.parse((FOLDER / f"{module}.py").read_text())
        classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
        names[module] = {entry_name(node.name): node.name for node in classes}
        for node in classes:
            test, _, what = (ast.get_docstring(node) or "").partition(": ")
            if test.startswith("test_"):
                mistakes.append(Mistake(kind, entry_name(node.name), test, what))
    return mistakes, names


MISTAKES, NAMES = read_mistakes()


class InProcessRollout(RolloutBackendSuite):
    in_process = True


class InProcessEngines(SyncStrategySuite):
    @contextmanager
    def engines(self):
        suite = suite_for(RolloutBackendSuite, load_plugins().find("rollout", "good"))()
        with suite.made() as backend:
            backend.start()
            yield Engines(
                backend.endpoints(),
                version=lambda endpoint: engine_at(endpoint.url).version,
                weights=lambda endpoint: engine_at(endpoint.url).weights,
            )


OWN_SUITES = {**SUITES, "rollout": InProcessRollout, "sync": InProcessEngines}


@pytest.fixture(scope="module")
def broken_site(tmp_path_factory):
    """The distribution, on sys.path for the tests of this package."""
    site = FakeSite(tmp_path_factory.mktemp("broken"))
    modules = {f"broken/{file.name}": file.read_text() for file in FOLDER.glob("*.py")}
    site.install("broken-components", {"broken": "broken.hooks"}, {**modules, "broken/hooks.py": HOOKS})
    (site.folder / "broken" / "names.json").write_text(json.dumps(NAMES))
    yield from site.activate()


@pytest.fixture(scope="module")
def run_component(broken_site):
    """Run the suite of a component of `broken/`, or one test of it; remembers what was run."""
    plugins, done = load_plugins(), {}

    def run(kind, name, test=None):
        if (kind, name, test) not in done:
            suite = suite_for(OWN_SUITES[kind], plugins.find(kind, name))
            done[kind, name, test] = run_suite(suite, [test] if test else [])
        return done[kind, name, test]

    return run


@pytest.fixture(scope="session")
def mistakes():
    return MISTAKES


def pytest_generate_tests(metafunc):
    if "mistake" in metafunc.fixturenames:
        metafunc.parametrize("mistake", MISTAKES, ids=str)
    if "good_kind" in metafunc.fixturenames:
        metafunc.parametrize("good_kind", list(KINDS.values()))
