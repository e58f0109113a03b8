"""`vime config`: the configuration of a run, without running it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from vime_core.cli.parser import Parser, add_overrides, warn
from vime_core.config.compose import compose
from vime_core.config.render import render

if TYPE_CHECKING:
    from collections.abc import Sequence


def run(arguments: Sequence[str], *, show_traceback: bool) -> int:
    """Print the configuration; with `--validate` first check everything that a run checks before it starts."""
    parser = Parser("config", "Print the configuration that `vime train` would use, as YAML.")
    add_overrides(parser)
    parser.add_argument("--no-provenance", action="store_true", help="leave out where each value came from")
    parser.add_argument("--json", action="store_true", help="print JSON: config, provenance, missing")
    parser.add_argument(
        "--validate",
        action="store_true",
        help="first check all that `vime train` checks before it starts: components, model, data, run folder",
    )
    options = parser.parse_intermixed_args(arguments)
    composed = compose(
        options.overrides,
        config_file=options.config,
        config_folder=options.config_dir,
        require_available=options.validate,
    )
    warn(composed.plugins)
    if options.validate:
        # Imported late: it reads data and builds the algorithm, which brings torch.
        from vime_core.loop.validate import validate

        validate(composed)
    if options.json:
        content = {"config": composed.tree, "provenance": dict(composed.provenance), "missing": composed.missing}
        print(json.dumps(content, indent=2))
    else:
        print(render(composed.tree, None if options.no_provenance else composed.provenance), end="")
    return 0
