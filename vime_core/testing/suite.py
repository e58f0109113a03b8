"""What all conformance suites have in common: finding the component, its settings, and what every entry must be."""

from __future__ import annotations

import inspect
import json
import pickle
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from unittest import SkipTest

from omegaconf import MISSING, OmegaConf

from vime_core.config.fields import setting_fields
from vime_core.config.schema import RolloutConfig, TrainConfig
from vime_core.plugins.kinds import AUTO
from vime_core.plugins.manager import load_plugins
from vime_core.plugins.registration import first_line
from vime_core.testing.contract import Nonconformance, check_interface, require

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from vime_core.plugins.registration import Registered

HEAVY_MODULES = ("torch", "ray", "vllm", "megatron", "transformers", "tensorflow", "jax")
"""Modules that registration must not import: `vime plugins list` loads every plugin there is."""

IMPORT_DEADLINE_S = 120.0

_IMPORTED_PROGRAM = """
import json, sys
from vime_core.plugins.discovery import discover
[candidate] = [c for c in discover() if [c.info.name, c.info.distribution] == sys.argv[1:3]]
candidate.load()
print(json.dumps([name for name in sys.argv[3:] if name in sys.modules]))
"""


class ComponentSuite:
    """Tests that hold for components of every kind; the suite of a kind derives from it and adds its own.

    A plugin derives an empty class from the suite of its kind:

        class TestConformance(RewardSuite):
            entry = "acme"

    A standard test can only be replaced by one that is marked `pytest.mark.xfail(reason=...)`.
    """

    group: ClassVar[str]
    """Configuration key of the kind, e.g. `reward`."""
    interface: ClassVar[type]
    """What the factory makes."""
    entry: ClassVar[str]
    """Name of the component under test."""
    settings: ClassVar[Mapping[str, Any]] = {}
    """Settings that the tests run with, besides the defaults."""
    runs_unavailable: ClassVar[bool] = False
    """Whether the tests make sense where the component is unavailable."""
    _found: ClassVar[Registered | None] = None

    def __init_subclass__(cls, **options: Any) -> None:
        """Refuse standard tests that are replaced or removed without a reason."""
        super().__init_subclass__(**options)
        for name in vars(cls):
            if name.startswith("test_") and any(name in vars(base) for base in cls.__mro__[1:]):
                _check_replacement(cls, name)

    @classmethod
    def component(cls) -> Registered:
        """The component under test."""
        if cls._found is None or cls._found.entry.name != cls.entry:
            cls._found = load_plugins().find(cls.group, cls.entry)
        return cls._found

    @classmethod
    def setup_class(cls) -> None:
        """Skip all tests of a component that is unavailable here; a probe that raises is a fault."""
        try:
            reason = cls.component().entry.unavailable()
        except Exception as error:
            raise Nonconformance(
                f"the probe raises {first_line(error)}; it must return why {cls.entry} is unavailable, or None"
            ) from error
        if reason and not cls.runs_unavailable:
            raise SkipTest(f"{cls.entry} is unavailable: {reason}")

    def config(self, **changes: Any) -> Any:
        """The component's settings: defaults, then `settings`, then `changes`."""
        entry = self.component().entry
        return _resolved(entry.config(**{"name": entry.name, **self.settings, **changes}))

    def build(self, *arguments: Any) -> Any:
        """Call the component's factory."""
        return self.component().build(*arguments)

    def make(self) -> Any:
        """The component as the core makes it, with the settings of the tests."""
        return self.build(self.config())

    @contextmanager
    def made(self) -> Iterator[Any]:
        """The component for the length of a block; suites of components that must be closed replace it."""
        yield self.make()

    def test_the_summary_is_one_line(self) -> None:
        """`vime plugins list` shows it."""
        summary = self.component().entry.summary
        require(bool(summary.strip()) and "\n" not in summary, f"the summary must be one line, not {summary!r}")

    def test_the_settings_have_the_name_of_the_entry(self) -> None:
        """As the default of `name`, unless that is inherited: `auto`, or none."""
        entry = self.component().entry
        name = next(field.default for field in fields(entry.config) if field.name == "name")
        require(
            name in (entry.name, AUTO, MISSING),
            f"the default of name in {entry.config.__name__} is {name!r}, and the entry's name {entry.name!r}; "
            "they must be equal",
        )

    def test_every_setting_has_a_docstring(self) -> None:
        """`vime plugins show` and the documentation need it."""
        config = self.component().entry.config
        silent = [field.name for field in setting_fields(config) if not field.doc and field.name != "name"]
        require(not silent, f"{config.__name__} has settings without a docstring below them: {', '.join(silent)}")

    def test_the_settings_can_travel_to_other_processes(self) -> None:
        """Trainer ranks and scoring processes get them by pickle."""
        config = self.config()
        try:
            copied = pickle.loads(pickle.dumps(config))
        except Exception as error:
            raise Nonconformance(f"the settings cannot be pickled: {error}") from error
        require(copied == config, "the settings are not equal to their pickled copy")

    def test_registration_imports_nothing_heavy(self) -> None:
        """Modules such as torch belong into the implementation, which is imported when it is chosen."""
        plugin = self.component().plugin
        heavy = _imported(plugin.name, plugin.distribution, tuple(sys.path))
        require(not heavy, f"the plugin's hooks import {', '.join(heavy)}; import them in the implementation")

    def test_the_component_has_the_methods_of_its_kind(self) -> None:
        """Names, arguments and whether they are coroutines."""
        with self.made() as component:
            check_interface(component, self.interface)


def suite_for(suite: type[ComponentSuite], registered: Registered) -> type[ComponentSuite]:
    """The suite for one component, as a plugin would derive it."""
    attributes = {"entry": registered.entry.name, "_found": registered}
    return type(f"{suite.__name__}Of{registered.entry.name}", (suite,), attributes)


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder for one test."""
    with tempfile.TemporaryDirectory(prefix="vime-conformance-") as folder:
        yield Path(folder)


def need(*modules: str) -> None:
    """Skip a test that needs modules which are not installed.

    Raises:
        SkipTest: names the first that is missing.
    """
    for module in modules:
        if find_spec(module) is None:
            raise SkipTest(f"needs {module}, which is not installed")


def _resolved(config: Any) -> Any:
    """Settings whose defaults refer to other keys, as a run with the defaults of `train` and `rollout` has them."""
    sections = {"component": config, "train": TrainConfig(name="tests"), "rollout": RolloutConfig(name="tests")}
    node = OmegaConf.create({key: OmegaConf.structured(section) for key, section in sections.items()}).component
    return replace(config, **{name: node[name] for name in map(str, node) if OmegaConf.is_interpolation(node, name)})


def _check_replacement(cls: type, name: str) -> None:
    marks = getattr(vars(cls)[name], "pytestmark", [])
    if not any(mark.name == "xfail" and mark.kwargs.get("reason") for mark in marks):
        where = f"{cls.__module__}.{cls.__qualname__}.{name}"
        raise TypeError(f"{where} replaces a standard test; mark it with @pytest.mark.xfail(reason=...)")
    if not inspect.isfunction(vars(cls)[name]):
        raise TypeError(f"{cls.__module__}.{cls.__qualname__}.{name} must be a test function")


@lru_cache
def _imported(plugin: str, distribution: str, path: tuple[str, ...]) -> list[str]:
    """Heavy modules that importing the plugin's hooks brings into a fresh process."""
    program = f"import sys; sys.path[:] = {list(path)!r}\n{_IMPORTED_PROGRAM}"
    done = subprocess.run(
        [sys.executable, "-c", program, plugin, distribution, *HEAVY_MODULES],
        capture_output=True,
        text=True,
        timeout=IMPORT_DEADLINE_S,
        check=False,
    )
    if done.returncode:
        raise Nonconformance(f"the plugin's hooks cannot be imported in a fresh process: {done.stderr.strip()[-300:]}")
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return found
