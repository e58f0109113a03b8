"""The command line: one short file a command."""

from vime_core.cli.app import main

__all__ = ["main"]
