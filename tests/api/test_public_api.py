"""What plugins may rely on does not change by accident."""

import difflib
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import vime_core
from vime_core import errors
from vime_core.plugins import interfaces
from vime_core.plugins.kinds import HOOK_ENTRIES, config_base

ROOT = Path(__file__).resolve().parents[2]


def load():
    spec = importlib.util.spec_from_file_location("public_api", Path(__file__).with_name("public_api.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_names_and_signatures_are_pinned():
    api = load()
    pinned, found = api.FILE.read_text().splitlines(), api.describe().splitlines()
    changes = list(difflib.unified_diff(pinned, found, "pinned", "found", n=0, lineterm=""))
    assert changes == [], (
        "the public API changed: deprecate what goes (vime_core.deprecation), write it into CHANGELOG.md, then run "
        "python tests/api/public_api.py"
    )


def test_the_pin_sees_every_kind_of_change():
    api = load()
    text = api.describe()
    for line in (
        "class RewardEntry(Entry)",
        "  priority: int = 0",
        "  score(self, sample: Sample, prompt: Prompt) -> Verdict",
        "  async generate(self, token_ids: ",
        "class PluginError(UserError)",
        "  is_judged (property)",
        "option(default: Any = ",
        "  torch_backend: str",
    ):
        assert line in text

    class Changed:
        def score(self, sample):
            """Another signature."""

    Changed.score.__module__ = "vime_core.changed"
    assert api.described("Changed", Changed) == ["class Changed()", "  score(self, sample)"]


def test_the_list_is_sorted_complete_and_light():
    assert vime_core.__all__ == sorted(vime_core.__all__)
    public = set(vime_core.__all__)
    own_errors = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert own_errors <= public
    for entry in HOOK_ENTRIES.values():
        [interface] = re.findall(r"Factory: `(\w+)\(", entry.__doc__)
        assert {entry.__name__, interface, config_base(entry).__name__} <= public
        assert getattr(vime_core, interface) is getattr(interfaces, interface)
    script = "import sys, vime_core; print({'torch', 'ray', 'vllm', 'megatron', 'numpy', 'hydra'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "set()\n"


def test_the_promise_is_written_down_and_the_changelog_has_this_version():
    promise = (ROOT / "docs" / "reference" / "compatibility.md").read_text()
    for word in ("__all__", "removed_in", "two minor releases", "vime_core.testing", "CHANGELOG.md"):
        assert word in promise
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert f"## {vime_core.__version__}" in changelog
