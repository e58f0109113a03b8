"""`vime plugins list`: every component, where it comes from, and whether it can be used."""

from __future__ import annotations

import json
import sys
import traceback
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from vime_core.cli.parser import Parser
from vime_core.plugins.listing import list_components
from vime_core.plugins.manager import load_plugins

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vime_core.plugins.listing import ListedComponent

STYLES = {"available": "green", "unavailable": "yellow", "ambiguous": "red", "failed": "red"}
PLAIN_WIDTH = 200
"""Columns when the output is no terminal."""


def run(arguments: Sequence[str], *, show_traceback: bool) -> int:
    """Print the list; a plugin that failed is a row in it, not an error."""
    parser = Parser("plugins", "List the components there are. VIME_PLUGINS_BLOCK=name,... leaves plugins out.")
    parser.add_argument("action", choices=["list"])
    parser.add_argument("--json", action="store_true", help="print JSON: one object a component")
    options = parser.parse_intermixed_args(arguments)
    plugins = load_plugins()
    rows = list_components(plugins)
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
    else:
        console = Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH)
        console.print(_table(rows))
    if show_traceback:
        for failure in plugins.failed:
            traceback.print_exception(failure.error)
    return 0


def _table(rows: Sequence[ListedComponent]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("kind", "name", "status", "plugin", "distribution", "version", "summary"):
        table.add_column(heading, no_wrap=heading != "summary", overflow="fold")
    for row in rows:
        table.add_row(
            row.kind,
            row.name,
            Text(row.status, STYLES.get(row.status, "dim")),
            row.plugin,
            row.distribution,
            row.version,
            Text(row.detail or row.summary),
        )
    return table
