from __future__ import annotations

import subprocess
import sys

from vime_core.plugins.entries import TrainBackendEntry
from vime_core.plugins.manager import load_plugins

LIGHT = """
import sys
from vime_megatron.hooks import vime_train_backends
[entry] = vime_train_backends()
assert entry.unavailable() is None, entry.unavailable()
heavy = {"torch", "ray", "vllm", "transformers", "megatron.core"} & set(sys.modules)
assert not heavy, heavy
"""


def test_registering_and_asking_for_availability_imports_nothing_heavy() -> None:
    subprocess.run([sys.executable, "-c", LIGHT], check=True, timeout=60)


def test_the_backend_is_found_by_name() -> None:
    entry = load_plugins(()).select("training backend", "megatron")
    assert isinstance(entry, TrainBackendEntry)
    assert entry.config.__name__ == "MegatronConfig"
    assert entry.load().__name__ == "MegatronBackend"
