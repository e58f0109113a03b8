"""The quickstart's parts, made once."""

import pytest

from examples.quickstart.make_assets import make_assets
from examples.quickstart.problems import split
from examples.quickstart.tokenizer import build_tokenizer
from examples.quickstart.warmup import WarmUp

SHORT = WarmUp(steps=3, batch=8, report_every=3)


@pytest.fixture(scope="session")
def tokenizer():
    return build_tokenizer()


@pytest.fixture(scope="session")
def problems():
    """(training, held-out) of seed 0."""
    return split(0)


@pytest.fixture(scope="session")
def assets(tmp_path_factory):
    """Assets with a warm-up of three steps."""
    folder = tmp_path_factory.mktemp("quickstart") / "assets"
    make_assets(folder, 0, SHORT)
    return folder
