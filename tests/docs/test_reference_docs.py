"""The reference is what the code says, and says something about everything."""

import ast
import importlib.util
import re
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from vime_core.cli.app import COMMANDS
from vime_core.plugins.hookcheck import HOOKS
from vime_core.plugins.kinds import HOOK_ENTRIES
from vime_core.run.metrics import METRICS, meaning

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [*(ROOT / "vime_core").rglob("*.py"), *ROOT.glob("plugins/vime_*/vime_*/**/*.py")]


def load():
    spec = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs" / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


generate = load()


def page(name: str) -> str:
    return (generate.FOLDER / name).read_text()


@pytest.mark.parametrize("name", generate.PAGES)
def test_a_page_is_what_the_generator_writes(name):
    if name == "cli.md" and sys.version_info[:2] != (3, 11):
        pytest.skip("argparse words its help differently in each version of Python; the page is of 3.11")
    assert page(name) == generate.PAGES[name](), "run `python docs/generate.py` and commit what it writes"


def test_the_generator_writes_its_pages(tmp_path, monkeypatch):
    monkeypatch.setattr(generate, "FOLDER", tmp_path / "reference")
    monkeypatch.setattr(generate, "PAGES", {"a.md": lambda: "text\n"})
    generate.main()
    assert (tmp_path / "reference" / "a.md").read_text() == "text\n"


def test_every_hook_entry_and_command_has_a_section():
    assert set(re.findall(r"^## (\w+)$", page("hooks.md"), re.MULTILINE)) == HOOKS.keys()
    assert {entry.__name__ for entry in HOOK_ENTRIES.values()} <= set(
        re.findall(r"^## (\w+)$", page("entries.md"), re.MULTILINE)
    )
    assert set(re.findall(r"^## vime (\w+)$", page("cli.md"), re.MULTILINE)) == COMMANDS.keys()


def test_every_setting_and_field_says_what_it_means():
    configs = {item.entry.config for item in generate._own_components()}
    entries = set(HOOK_ENTRIES.values())
    undocumented = [
        f"{owner.__name__}.{item.name}"
        for owner in configs | entries
        for item in fields(owner)
        if not generate.field_docs(owner).get(item.name)
    ]
    assert undocumented == []
    empty = re.compile(r"^\|.*\|\s+\|$", re.MULTILINE)
    for name in generate.PAGES:
        assert empty.findall(page(name)) == []


def test_every_metric_is_documented():
    assert all(f"| `{key}` |" in page("metrics.md") for key in METRICS)
    written = {
        node.value
        for source in SOURCES
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    names = {text for text in written if re.fullmatch(r"(rollout|train|perf|sync|async|eval)/[\w/]+[a-z]", text)}
    assert "rollout/raw_reward" in names
    assert sorted(name for name in names if not meaning(name)) == []


def test_the_time_of_every_stage_is_documented():
    stages = {name for source in SOURCES for name in re.findall(r'\.stage\("(\w+)"\)', source.read_text())}
    assert {"update", "sync", "save"} <= stages
    assert {f"perf/{stage}_time_s" for stage in stages} <= METRICS.keys()


def test_what_an_algorithm_reports_is_documented():
    import torch

    from vime_core.plugins.interfaces import LossInputs
    from vime_grpo.config import GRPOConfig
    from vime_grpo.grpo import GRPO

    values = torch.full((3,), -0.5)
    inputs = LossInputs(
        logprobs=values.clone().requires_grad_(),
        entropy=-values,
        loss_mask=torch.ones(3, dtype=torch.bool),
        advantages=torch.ones(3),
        rollout_logprobs=values,
        old_logprobs=values,
        ref_logprobs=values,
        cu_seqlens=torch.tensor([0, 3]),
    )
    metrics = GRPO(GRPOConfig(kl_coef=0.1, entropy_coef=0.1)).loss(inputs).metrics
    assert {"pg_loss", "kl", "entropy"} <= metrics.keys()
    assert {f"train/{name}" for name in metrics} <= METRICS.keys()


def test_markdown_keeps_cells_on_one_line_and_shows_angle_brackets():
    assert generate._table(("a",), [("x\ny | <z> `<w>`",)])[-1] == "| x y \\| &lt;z> `<w>` |"


def test_what_the_page_on_devices_names_is_there():
    text = page("gpu-only.md")
    files = re.findall(r"`((?:vime_core|plugins|tests)/[\w/.]+\.py)`", text)
    assert len(files) > 15
    assert [file for file in files if not (ROOT / file).is_file()] == []
    table, absent = text.split("## What does not exist yet")
    for name in re.findall(r"`sync=(\w+)`", absent):
        assert name not in {item.entry.name for item in generate._own_components() if item.entry.group == "sync"}
    for file in re.findall(r"`(benchmarks/\w+\.py)`", absent):
        assert not (ROOT / file).exists()
    proofs = [line.rsplit("|", 2)[1].strip() for line in table.splitlines() if line.startswith("| ")][2:]
    unproven = all(proof.startswith("none") for proof in proofs)
    assert ("None of the paths below has been run on a device yet" in text) == unproven


def test_pages_link_to_pages_that_are_there():
    for source in generate.FOLDER.glob("*.md"):
        for target in re.findall(r"\]\(([\w.-]+\.md)", source.read_text()):
            assert (generate.FOLDER / target).is_file(), (source.name, target)
