from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from vime_core.config.compose import compose
from vime_core.config.composed import ComposedConfig
from vime_core.testing.components import OVERRIDES, install_components
from vime_core.testing.distributions import FakeSite


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSite]:
    """Installed: core, and one component `acme` of each kind; the repository's own plugins are blocked."""
    monkeypatch.setenv("VIME_PLUGINS_BLOCK", "grpo,qwen3,math_verifier,megatron,vllm,rocm")
    site = FakeSite(tmp_path / "site")
    install_components(site)
    yield from site.activate()


@pytest.fixture
def acme(site: FakeSite, tmp_path: Path) -> Callable[..., ComposedConfig]:
    """Composes with the components `acme`; the user's own files are below `tmp_path / "conf"`."""
    (tmp_path / "conf" / "experiment").mkdir(parents=True)

    def composed(*overrides: str) -> ComposedConfig:
        return compose([*OVERRIDES, *overrides], config_folder=tmp_path / "conf")

    return composed


@pytest.fixture
def experiment(tmp_path: Path) -> Callable[[str, str], None]:
    """Writes an experiment of the user's own."""

    def write(name: str, text: str) -> None:
        (tmp_path / "conf" / "experiment" / f"{name}.yaml").write_text(f"# @package _global_\n{text}")

    return write
