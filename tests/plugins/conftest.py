from collections.abc import Iterator
from pathlib import Path

import pytest

from vime_core.testing.distributions import FakeSite


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSite]:
    """A folder for fake distributions, on sys.path for the length of the test."""
    monkeypatch.delenv("VIME_PLUGINS_BLOCK", raising=False)
    yield from FakeSite(tmp_path / "site").activate()
