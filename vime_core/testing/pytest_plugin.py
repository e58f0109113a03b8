"""Fixtures for tests of plugins; pytest finds them by the entry point `vime` of group `pytest11`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from vime_core.plugins.manager import Plugins
    from vime_core.testing.distributions import FakeSite


@pytest.fixture
def vime_only(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Plugins]:
    """`vime_only("acme", ...)` lets this test, and processes that it starts, see core and these plugins only.

    Whatever else is installed is blocked before it is imported. Returns the plugins as they are then.
    """
    from vime_core.errors import PluginError
    from vime_core.plugins.discovery import BLOCK_VARIABLE, CORE, discover
    from vime_core.plugins.manager import load_plugins

    def only(*names: str) -> Plugins:
        installed = {candidate.info.name for candidate in discover()} - {CORE}
        missing = sorted(set(names) - installed)
        if missing:
            raise PluginError(f"plugin {missing[0]!r} is not installed; there are {', '.join(sorted(installed))}")
        monkeypatch.setenv(BLOCK_VARIABLE, ",".join(sorted(installed - set(names))))
        return load_plugins()

    return only


@pytest.fixture
def vime_site(tmp_path: Path, vime_only: Callable[..., Plugins]) -> Iterator[FakeSite]:
    """A folder for distributions that exist for this test only; of those that are installed only core is seen."""
    from vime_core.testing.distributions import FakeSite

    vime_only()
    yield from FakeSite(tmp_path / "vime-site").activate()
