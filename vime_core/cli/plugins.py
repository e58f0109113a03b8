"""`vime plugins list | show | check`: the components there are, what they are, and whether they do what they must."""

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
from vime_core.cli.plugins_check import DEADLINE_S, check
from vime_core.cli.plugins_show import show
from vime_core.errors import UserError
from vime_core.plugins.listing import list_components
from vime_core.plugins.manager import load_plugins

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vime_core.plugins.listing import ListedComponent
    from vime_core.plugins.manager import Plugins

STYLES = {"available": "green", "unavailable": "yellow", "ambiguous": "red", "failed": "red"}
PLAIN_WIDTH = 200
"""Columns when the output is no terminal."""

DESCRIPTION = """List, describe and check the components there are.

  list          every component: where it comes from, and whether it can be used here
  show NAME     settings of the components of a plugin, or of the components of that name
  check [NAME]  run the conformance tests of their kinds; the exit status is 1 when one fails

NAME is a plugin, a distribution or a component. VIME_PLUGINS_BLOCK=name,... leaves plugins out.
"""


def run(arguments: Sequence[str], *, show_traceback: bool) -> int:
    """Do what is asked; for `list`, a plugin that failed is a row, not an error."""
    parser = Parser("plugins", DESCRIPTION)
    parser.add_argument("action", choices=["list", "show", "check"])
    parser.add_argument("name", nargs="?", metavar="NAME", help="a plugin, a distribution or a component")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--deadline",
        type=float,
        default=DEADLINE_S,
        metavar="SECONDS",
        help="check: longest that the tests of one component may take (default %(default)g)",
    )
    options = parser.parse_intermixed_args(arguments)
    plugins = load_plugins()
    if options.action == "check":
        return check(
            plugins, options.name, deadline_s=options.deadline, as_json=options.json, show_traceback=show_traceback
        )
    if options.action == "show":
        if options.name is None:
            raise UserError("vime plugins show: what? give a name; vime plugins list shows all")
        return show(plugins, options.name, as_json=options.json)
    if options.name is not None:
        raise UserError(f"vime plugins list takes no name; vime plugins show {options.name} describes it")
    return _list(plugins, as_json=options.json, show_traceback=show_traceback)


def _list(plugins: Plugins, *, as_json: bool, show_traceback: bool) -> int:
    rows = list_components(plugins)
    if as_json:
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
