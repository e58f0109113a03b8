"""What the page about configuration shows is what vime says."""

import re
import shlex
from pathlib import Path

import pytest

from vime_core.cli import main

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "how-to" / "configuration.md"
SHOWN = re.findall(r"^\$ (vime config .+?)(?: # exit (\d))?$(?:\n(error: .*))?", PAGE.read_text(), re.MULTILINE)


def test_the_page_shows_mistakes():
    assert sum(bool(told) for _, _, told in SHOWN) >= 5


@pytest.mark.parametrize(("command", "status", "told"), SHOWN)
def test_a_command_of_the_page(command, status, told, capsys):
    assert main(shlex.split(command)[1:]) == int(status or 0)
    assert capsys.readouterr().err.rstrip("\n") == told
