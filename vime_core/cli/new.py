"""`vime new`: a plugin package to start from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from vime_core.cli.parser import Parser
from vime_core.scaffold import KINDS, write_package

if TYPE_CHECKING:
    from collections.abc import Sequence

DESCRIPTION = f"""Write a complete plugin package, with settings, implementation, conformance test and README.

kinds: {", ".join(KINDS)}

example:
  vime new reward demo && pip install -e ./vime-demo && vime plugins check demo
"""


def run(arguments: Sequence[str], *, show_traceback: bool) -> int:
    """Write the package, and print where it is and what to do next."""
    parser = Parser("new", DESCRIPTION)
    parser.add_argument("kind", metavar="KIND", help="what the package brings")
    parser.add_argument("name", metavar="NAME", help="of the component: lower case letters, digits and underscores")
    parser.add_argument("--folder", type=Path, metavar="FOLDER", help="a new folder; ./vime-NAME when not given")
    parser.add_argument(
        "--rollout-backend",
        metavar="ROLLOUT",
        help="sync: the rollout backend whose engines it pushes into; NAME_rollout when not given",
    )
    options = parser.parse_intermixed_args(arguments)
    folder = write_package(options.kind, options.name, options.folder, rollout_backend=options.rollout_backend)
    place = folder if folder.is_absolute() else f"./{folder}"
    print(f"wrote {place}\n\n  pip install -e {place}\n  vime plugins check {options.name}")
    return 0
