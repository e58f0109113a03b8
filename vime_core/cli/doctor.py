"""`vime doctor`: whether this node is fit for a run."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from vime_core.cli.parser import Parser, warn
from vime_core.doctor.checks import check_node
from vime_core.plugins.manager import load_plugins

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vime_core.accelerators.findings import Finding

STYLES = {"ok": "green", "warning": "yellow", "problem": "red"}
PLAIN_WIDTH = 160

DESCRIPTION = """Check this node: limits, shared memory, ports, torch, accelerators and their masks, Ray, vLLM.

Prints what is ok, what may hurt (warning) and what stops a run (problem), each with its remedy. The exit status is 1
when there is a problem. On a cluster, run it on every node.
"""


def run(arguments: Sequence[str], *, show_traceback: bool) -> int:
    """Print the table; returns 1 when there is a problem, else 0."""
    parser = Parser("doctor", DESCRIPTION)
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    plugins = load_plugins()
    warn(plugins)
    findings = check_node(plugins)
    if options.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        _print(findings)
    return int(any(finding.status == "problem" for finding in findings))


def _print(findings: Sequence[Finding]) -> None:
    if sys.stdout.isatty():
        Console().print(_table(findings))
        return
    output = io.StringIO()
    Console(file=output, width=PLAIN_WIDTH, color_system=None).print(_table(findings))
    print("\n".join(line.rstrip() for line in output.getvalue().splitlines()))


def _table(findings: Sequence[Finding]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("check", no_wrap=True)
    table.add_column("status", no_wrap=True)
    table.add_column("found, and what to do", overflow="fold")
    for finding in findings:
        told = f"{finding.detail}\n-> {finding.remedy}" if finding.remedy else finding.detail
        table.add_row(finding.check, Text(finding.status, STYLES[finding.status]), Text(told))
    return table
