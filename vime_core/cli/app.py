"""`vime`: finds the command, and turns errors into one line and an exit status."""

from __future__ import annotations

import os
import sys
import traceback
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING

from vime_core.errors import UserError, VimeError
from vime_core.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

COMMANDS = {
    "train": "train a model",
    "config": "print the configuration of a run, and where each value came from",
    "new": "write a plugin package to start from",
    "doctor": "check whether this node is fit for a run",
    "plan": "estimate memory and placement of a run, and say whether it fits",
    "plugins": "list, describe and check the components there are",
    "report": "write curves, verdicts and samples of a run into one HTML page",
    "verifier": "measure how often rewards are wrong on responses whose truth is known",
    "generate": "answer prompts with the engines of a run",
    "eval": "measure accuracy and pass@k on held-out sets",
    "export": "write the weights of a checkpoint as a Hugging Face folder",
    "convert": "convert weights between Hugging Face format and a training backend's own",
    "completion": "let the shell complete commands, components, keys and values",
}
"""Command -> summary; each is a module beside this one with a function `run(arguments, *, show_traceback)`."""

INTERRUPTED = 130
BROKEN_PIPE = 141


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit status.

    Args:
        arguments: without the program's name; those of this process when None.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    show_traceback = "--traceback" in given
    try:
        status = _dispatch([item for item in given if item != "--traceback"], show_traceback)
        sys.stdout.flush()
        return status
    except VimeError as error:
        if show_traceback:
            traceback.print_exception(error)
        print(f"error: {one_line(error)}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of the output has gone; keep Python from flushing into the closed pipe at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except Exception as error:  # a fault of a plugin, which its notes name, or of vime itself
        if show_traceback:
            traceback.print_exception(error)
        hint = "" if show_traceback else "; --traceback shows where"
        print(f"error: {type(error).__name__}: {one_line(error)}{hint}", file=sys.stderr)
        return VimeError.exit_code


def one_line(error: BaseException) -> str:
    """An error with its notes, without line breaks."""
    notes = [f"({note})" for note in getattr(error, "__notes__", ())]
    return " ".join(" ".join([str(error), *notes]).split())


def _dispatch(arguments: list[str], show_traceback: bool) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_help(), file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else UserError.exit_code
    if arguments[0] in ("-V", "--version", "version"):
        print(f"vime {__version__}")
        return 0
    command = arguments[0]
    if command not in COMMANDS:
        close = get_close_matches(command, COMMANDS, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(COMMANDS)}"
        raise UserError(f"unknown command {command!r}; {hint}")
    status: int = import_module(f"vime_core.cli.{command}").run(arguments[1:], show_traceback=show_traceback)
    return status


def _help() -> str:
    width = max(map(len, COMMANDS))
    commands = [f"  {name:<{width}}  {summary}" for name, summary in COMMANDS.items()]
    return "\n".join(
        [
            "usage: vime <command> [arguments]",
            "",
            "commands:",
            *commands,
            "",
            "options:",
            "  --help       this text; after a command, that command's",
            "  --version    the version",
            "  --traceback  show where an error came from",
        ]
    )
