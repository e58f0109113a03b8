"""What the plugin registers, and at what cost."""

import subprocess
import sys

from vime_qwen3.hooks import vime_models
from vime_qwen3.qwen3 import Qwen3
from vime_qwen3.qwen3_moe import Qwen3Moe


def test_entries_load_the_families():
    entries = {entry.name: entry for entry in vime_models()}
    assert {name: entry.load() for name, entry in entries.items()} == {"qwen3": Qwen3, "qwen3_moe": Qwen3Moe}
    assert all(entry.unavailable() is None and entry.config().name == name for name, entry in entries.items())


def test_families_import_nothing_heavy():
    code = (
        "import sys, vime_qwen3.hooks, vime_qwen3.qwen3, vime_qwen3.qwen3_moe;"
        "print([m for m in ('torch', 'transformers', 'ray', 'megatron', 'vllm', 'numpy') if m in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert answer.stdout.strip() == "[]"
