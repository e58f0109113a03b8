"""`vime export`: a checkpoint as a model folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from vime_core.cli.parser import Parser
from vime_core.loop.export import plan_export, run_export
from vime_core.run.folder import RunFolder

if TYPE_CHECKING:
    from collections.abc import Sequence

DESCRIPTION = """Write the weights of a checkpoint as a folder in Hugging Face format.

The folder has configuration and tokenizer of the model that the run started from; transformers and vLLM load it.
One process reads the whole checkpoint: about 16 bytes of memory a parameter, on the run's accelerator or another.
"""


def run(arguments: Sequence[str], *, show_traceback: bool) -> int:
    """Write the folder, and print where it is."""
    parser = Parser("export", DESCRIPTION)
    parser.add_argument("run", type=Path, metavar="RUN", help="run folder, e.g. outputs/<date>/<time>_<name>")
    parser.add_argument("--step", type=int, metavar="N", help="step of the checkpoint; the newest when not given")
    parser.add_argument(
        "--output", type=Path, metavar="FOLDER", help="a new folder; RUN/export/step_NNNNNN when not given"
    )
    parser.add_argument("--model", type=Path, metavar="FOLDER", help="where the run's model folder is now")
    parser.add_argument("--accelerator", metavar="NAME", help="what to load the checkpoint on, e.g. cpu")
    options = parser.parse_intermixed_args(arguments)
    export = plan_export(
        RunFolder.find(options.run),
        options.step,
        options.output,
        model=options.model,
        accelerator=options.accelerator,
    )
    run_export(export)
    print(export.output)
    return 0
