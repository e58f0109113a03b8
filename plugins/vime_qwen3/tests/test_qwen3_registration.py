"""What the plugin registers, and at what cost."""

import subprocess
import sys

from vime_qwen3.hooks import vime_models
from vime_qwen3.qwen3 import Qwen3


def test_entry_loads_the_family():
    (entry,) = vime_models()
    assert entry.name == "qwen3"
    assert entry.unavailable() is None
    assert entry.load() is Qwen3
    assert entry.config().name == "qwen3"


def test_family_imports_nothing_heavy():
    code = (
        "import sys, vime_qwen3.hooks, vime_qwen3.qwen3;"
        "print([m for m in ('torch', 'transformers', 'ray', 'megatron', 'vllm', 'numpy') if m in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert answer.stdout.strip() == "[]"
