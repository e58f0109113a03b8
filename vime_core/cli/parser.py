"""What the commands' argument parsers have in common."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from vime_core.errors import UserError

if TYPE_CHECKING:
    from vime_core.plugins.manager import Plugins


class Parser(argparse.ArgumentParser):
    """Wrong arguments are a `UserError`; help keeps its line breaks."""

    def __init__(self, command: str, description: str) -> None:
        super().__init__(
            prog=f"vime {command}",
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        """Raise instead of exiting."""
        raise UserError(f"{self.prog}: {message}; see {self.prog} --help")


def add_overrides(parser: argparse.ArgumentParser) -> None:
    """The arguments that make a configuration."""
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="a setting, or a choice such as algorithm=grpo"
    )
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="start from a saved configuration, e.g. a run folder's config.yaml"
    )
    parser.add_argument(
        "--config-dir",
        type=Path,
        metavar="FOLDER",
        help="look for experiment/<name>.yaml and hardware/<name>.yaml here too",
    )


def warn(plugins: Plugins) -> None:
    """One line on standard error for each plugin that failed and each name that is not unique."""
    for line in plugins.warnings():
        print(f"warning: {line}", file=sys.stderr)
