from collections.abc import Iterator
from pathlib import Path

import pytest

from vime_core.testing.components import install_components
from vime_core.testing.distributions import FakeSite


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSite]:
    """Installed: core, and one component `acme` of each kind; the repository's own plugins are blocked."""
    monkeypatch.setenv("VIME_PLUGINS_BLOCK", "grpo,qwen3,math_verifier,megatron,vllm,rocm")
    site = FakeSite(tmp_path / "site")
    install_components(site)
    yield from site.activate()
