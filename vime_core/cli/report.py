"""`vime report`: a run as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from vime_core.cli.parser import Parser
from vime_core.report.page import render_report
from vime_core.run.atomic import write_text
from vime_core.run.folder import RunFolder

if TYPE_CHECKING:
    from collections.abc import Sequence

DESCRIPTION = """Write curves, verdicts and samples of a run into one HTML page.

The page needs no network and no other file. The run may still be going on.
"""


def run(arguments: Sequence[str], *, show_traceback: bool) -> int:
    """Write the page, and print where it is."""
    parser = Parser("report", DESCRIPTION)
    parser.add_argument("run", type=Path, metavar="RUN", help="run folder, e.g. outputs/<date>/<time>_<name>")
    parser.add_argument("--output", type=Path, metavar="FILE", help="the page; RUN/report.html when not given")
    options = parser.parse_intermixed_args(arguments)
    folder = RunFolder.find(options.run)
    output = options.output or folder.path / "report.html"
    page = render_report(folder)
    write_text(output, page)
    print(str(output).encode(errors="replace").decode())
    return 0
