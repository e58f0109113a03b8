"""The suites pass what is right, and find what is wrong."""

import json
import subprocess
import sys
from textwrap import dedent

import pytest

from vime_core import testing
from vime_core.plugins.kinds import ENTRY_TYPES
from vime_core.plugins.manager import load_plugins
from vime_core.testing import SUITES, AlgorithmSuite, FilterSuite, RewardSuite
from vime_core.testing.distributions import FakeSite
from vime_core.testing.runner import run_suite
from vime_core.testing.suite import ComponentSuite, suite_for


def test_every_kind_has_a_suite():
    assert SUITES.keys() == {entry_type.group for entry_type in ENTRY_TYPES}


def test_a_component_that_is_right_passes(good_kind, run_component):
    results = run_component(good_kind, "good")
    skipped = {"test_the_tensors_are_those_of_transformers"} if good_kind == "model" else set()
    assert {result.test: result.detail for result in results if result.outcome == "failed"} == {}
    assert {result.test for result in results if result.outcome == "skipped"} == skipped
    assert len(results) >= 8


def test_a_mistake_is_found(mistake, run_component):
    [result] = run_component(mistake.kind, mistake.name, mistake.test)
    assert result.outcome == "failed", f"{mistake.what} was not found"
    assert result.detail
    assert "\n" not in result.detail


def test_every_test_of_every_suite_finds_a_mistake_and_the_list_is_printed(mistakes, run_component):
    """`pytest -s` shows the list."""
    lines = []
    for mistake in mistakes:
        [result] = run_component(mistake.kind, mistake.name, mistake.test)
        assert result.outcome == "failed"
        lines.append(f"{mistake.kind:<17}{mistake.what}\n{'':<17}-> {mistake.test}: {result.detail[:150]}")
    print("\n".join(["", f"{len(lines)} mistakes, all caught:", *lines]))
    found = {(mistake.kind, mistake.test) for mistake in mistakes}
    own = {(kind, name) for kind, suite in SUITES.items() for name in vars(suite) if name.startswith("test_")}
    # The statuses of `examples` are the plugin's to give; see below.
    assert own - found == {("reward", "test_the_examples_get_their_status")}
    kinds = {mistake.kind for mistake in mistakes}
    assert kinds == SUITES.keys()


def test_a_wrong_example_of_a_reward_is_found(broken_site):
    registered = load_plugins().find("reward", "good")

    class Right(suite_for(RewardSuite, registered)):
        examples = (("it is 4", "4", "correct"), ("it is 5", "4", "wrong"))

    class Wrong(suite_for(RewardSuite, registered)):
        examples = (("it is 5", "4", "correct"),)

    name = "test_the_examples_get_their_status"
    assert [result.outcome for result in run_suite(Right, [name])] == ["passed"]
    [result] = run_suite(Wrong, [name])
    assert result.detail == "the status of 'it is 5' for '4' must be 'correct', not 'wrong'"


REGISTRATION = """
    import {heavy}
    from dataclasses import dataclass, field
    from vime_core import hookimpl
    from vime_core.config import schema
    from vime_core.plugins.entries import FilterEntry

    @dataclass(kw_only=True)
    class Documented(schema.ComponentConfig):
        '''Settings.'''

        least: int = 1
        '''What is kept.'''

    @dataclass(kw_only=True)
    class Undocumented(schema.ComponentConfig):
        least: int = 1

    @dataclass(kw_only=True)
    class Unequal(Documented):
        __hash__ = object.__hash__
        def __eq__(self, other):
            return self is other

    @dataclass(kw_only=True)
    class Named(Documented):
        name: str = "other"

    @hookimpl
    def vime_filters():
        common = dict(factory="broken.filters:Good")
        return [
            FilterEntry(name="fine", summary="fine", config=Documented, **common),
            FilterEntry(name="undocumented", summary="fine", config=Undocumented, **common),
            FilterEntry(name="named", summary="fine", config=Named, **common),
            FilterEntry(name="unequal", summary="fine", config=Unequal, **common),
            FilterEntry(name="wordy", summary="two\\nlines", config=Documented, **common),
            FilterEntry(name="silent", summary=" ", config=Documented, **common),
        ]
"""


def registration(tmp_path, heavy):
    site = FakeSite(tmp_path)
    hooks = REGISTRATION.replace("{heavy}", heavy)
    site.install("registering", {"registering": "registering.hooks"}, {"registering/hooks.py": hooks, "jax/x.py": ""})
    return site


@pytest.mark.parametrize(
    ("name", "test", "detail"),
    [
        (
            "undocumented",
            "test_every_setting_has_a_docstring",
            "Undocumented has settings without a docstring below them: least",
        ),
        (
            "named",
            "test_the_settings_have_the_name_of_the_entry",
            "the default of name in Named is 'other', and the entry's name 'named'",
        ),
        ("unequal", "test_the_settings_can_travel_to_other_processes", "the settings are not equal to their pickled"),
        ("wordy", "test_the_summary_is_one_line", "the summary must be one line, not 'two"),
        ("silent", "test_the_summary_is_one_line", "the summary must be one line, not ' '"),
    ],
)
def test_a_mistake_of_registration_is_found(broken_site, tmp_path, name, test, detail):
    for _ in registration(tmp_path, "json").activate():
        plugins = load_plugins()
        [result] = run_suite(suite_for(FilterSuite, plugins.find("filter", name)), [test])
        assert (result.outcome, result.detail[: len(detail)]) == ("failed", detail)
        [fine] = run_suite(suite_for(FilterSuite, plugins.find("filter", "fine")), [test])
        assert fine.outcome == "passed"


def test_heavy_imports_of_registration_are_found(broken_site, tmp_path):
    for _ in registration(tmp_path, "jax").activate():
        suite = suite_for(FilterSuite, load_plugins().find("filter", "fine"))
        [result] = run_suite(suite, ["test_registration_imports_nothing_heavy"])
        assert result.detail == "the plugin's hooks import jax; import them in the implementation"


def test_a_component_that_is_unavailable_is_skipped(broken_site, tmp_path):
    site = registration(tmp_path, "json")
    hooks = site.folder / "registering" / "hooks.py"
    hooks.write_text(hooks.read_text().replace('"broken.filters:Good"', '"a:B", requires=("nosuchmodule",)'))
    for _ in site.activate():
        results = run_suite(suite_for(FilterSuite, load_plugins().find("filter", "fine")))
        assert {result.outcome for result in results} == {"skipped"}
        assert results[0].detail == "fine is unavailable: module nosuchmodule is not installed"


def test_a_standard_test_cannot_be_replaced_without_a_reason():
    name = "test_groups_stay_as_they_are"
    for replacement in (lambda self: None, None, pytest.mark.xfail(lambda self: None), pytest.mark.xfail(reason="")):
        with pytest.raises(TypeError, match=f"{name} replaces a standard test; mark it with @pytest.mark.xfail"):
            type("TestMine", (AlgorithmSuite,), {name: replacement, "entry": "a"})

    class TestMine(AlgorithmSuite):
        @pytest.mark.xfail(reason="the groups are sorted in place")
        def test_groups_stay_as_they_are(self):
            super().test_groups_stay_as_they_are()

        def test_of_my_own(self):
            assert self.entry == "mine"

    assert issubclass(TestMine, ComponentSuite)


def test_pytest_runs_a_suite_as_a_plugin_derives_it(broken_site, tmp_path):
    """Skips and expected failures are what they are called, and the fixtures are there without being asked for."""
    (tmp_path / "test_conformance.py").write_text(
        dedent(
            """
            import pytest
            from vime_core.testing import FilterSuite, RolloutBackendSuite

            class TestGood(FilterSuite):
                entry = "good"

            class TestOther(FilterSuite):
                entry = "drops_samples"

                @pytest.mark.xfail(reason="it drops samples", strict=True)
                def test_a_group_is_left_as_it_is(self):
                    super().test_a_group_is_left_as_it_is()

            class TestEngines(RolloutBackendSuite):
                entry = "good"

            def test_only_what_is_asked_for(vime_only):
                assert [plugin.name for plugin in vime_only("broken").loaded] == ["core", "broken"]
                assert [plugin.name for plugin in vime_only().loaded] == ["core"]

            def test_site(vime_site):
                vime_site.install("fresh", {"fresh": "fresh.hooks"}, {"fresh/hooks.py": ""})
                from vime_core.plugins.manager import load_plugins
                assert [plugin.name for plugin in load_plugins().loaded] == ["core", "fresh"]

            def test_what_is_not_there(vime_only):
                with pytest.raises(Exception, match="plugin 'nosuch' is not installed; there are .*broken"):
                    vime_only("nosuch")
            """
        )
    )
    path = {"PYTHONPATH": str(broken_site.folder), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, env=path, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines()[-1].startswith("28 passed, 8 skipped, 1 xfailed")


def test_the_kit_is_light_until_a_suite_is_asked_for():
    program = (
        "import sys, json, vime_core.testing.pytest_plugin\n"
        "heavy = {'torch', 'ray', 'numpy', 'pyarrow', 'transformers', 'hydra'} & sys.modules.keys()\n"
        "print(json.dumps(sorted(heavy)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert json.loads(done.stdout) == []
    with pytest.raises(AttributeError, match="no attribute 'NoSuite'"):
        _ = testing.NoSuite
