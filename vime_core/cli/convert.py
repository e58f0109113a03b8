"""`vime convert`: a model folder as a checkpoint of the training backend, and back."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

from vime_core.cli.parser import Parser
from vime_core.loop.convert import plan_conversion, run_conversion
from vime_core.loop.interrupts import terminated_like_interrupted
from vime_core.plugins.manager import load_plugins

if TYPE_CHECKING:
    from collections.abc import Sequence

DESCRIPTION = """Convert weights between Hugging Face format and the checkpoints of a training backend.

  vime convert MODEL OUTPUT                     a model folder to a checkpoint
  vime convert CHECKPOINT OUTPUT --model MODEL  a checkpoint to a model folder

Tensors pass one after the other; with --processes N, N of them at one time. Every layout loads the checkpoint. MODEL
gives configuration and tokenizer. What is there already is not overwritten.
"""


def run(arguments: Sequence[str], *, show_traceback: bool) -> int:
    """Convert, and print where the result is."""
    parser = Parser("convert", DESCRIPTION)
    parser.add_argument("source", type=Path, metavar="SOURCE", help="model folder, or checkpoint with --model")
    parser.add_argument("output", type=Path, metavar="OUTPUT", help="a new folder")
    parser.add_argument("--model", type=Path, metavar="FOLDER", help="model folder that the checkpoint descends from")
    parser.add_argument("--train", metavar="NAME", help="training backend; the only one that converts when not given")
    processes = "processes of this machine that share the work out; 1 by default"
    parser.add_argument("--processes", type=int, default=1, metavar="N", help=processes)
    options = parser.parse_args(arguments)
    conversion = plan_conversion(
        load_plugins(),
        options.source,
        options.output,
        model=options.model,
        backend=options.train,
        processes=options.processes,
    )
    columns = (BarColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn())
    bar = Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty())
    with terminated_like_interrupted(), bar as progress:
        task = progress.add_task("convert", total=conversion.total_bytes)
        run_conversion(conversion, lambda count: progress.advance(task, count))
    print(conversion.output)
    return 0
