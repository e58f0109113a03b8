"""No hook without documentation, an example that runs, and components that are tested through it."""

import inspect
import re
from pathlib import Path
from textwrap import dedent

import pytest

from vime_core.plugins.hookcheck import HOOKS
from vime_core.plugins.kinds import HOOK_ENTRIES
from vime_core.plugins.manager import load_plugins

ROOT = Path(__file__).resolve().parents[2]


def example(hook: str) -> str:
    """The code in the documentation of a hook."""
    found = re.search(r"^Example:\n((?:    .*\n?|\n)+)", inspect.getdoc(HOOKS[hook]) or "", re.MULTILINE)
    assert found, f"the documentation of {hook} has no Example"
    return dedent(found[1]).strip() + "\n"


@pytest.mark.parametrize("hook", HOOKS)
def test_the_example_of_a_hook_is_a_plugin(hook, vime_site):
    vime_site.install("acme", {"acme": "vime_acme.hooks"}, {"vime_acme/hooks.py": example(hook)})
    plugins = load_plugins()
    assert plugins.failed == []
    [registered] = [registered for registered in plugins.registered if registered.plugin.name == "acme"]
    assert type(registered.entry) is HOOK_ENTRIES[hook]
    assert plugins.find(registered.entry.group, registered.entry.name) is registered


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_says_what_it_is_for_when_it_is_called_and_what_it_returns(hook):
    text = inspect.getdoc(HOOKS[hook])
    assert re.match(r"[A-Z][a-z ]+: .*\.|[A-Z][a-z ]+\.", text.splitlines()[0])
    assert "Called once, when plugins are loaded." in text
    assert f"Returns `{HOOK_ENTRIES[hook].__name__}` objects; factory" in text


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_has_a_page_and_components_that_are_tested(hook):
    section = (ROOT / "docs" / "reference" / "hooks.md").read_text().split(f"## {hook}\n")[1].split("\n## ")[0]
    assert example(hook) in section
    tested = ROOT / "tests" / "testing" / "broken" / f"{hook.removeprefix('vime_')}.py"
    assert tested.is_file(), f"{hook} needs a right component and broken ones in {tested.relative_to(ROOT)}"
    assert "class Good" in tested.read_text()


def test_a_hook_without_an_example_is_noticed(monkeypatch):
    def vime_undocumented():
        """Something new."""

    monkeypatch.setitem(HOOKS, "vime_undocumented", vime_undocumented)
    with pytest.raises(AssertionError, match="the documentation of vime_undocumented has no Example"):
        example("vime_undocumented")
