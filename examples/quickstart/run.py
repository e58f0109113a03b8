"""The quickstart: make the model and the problems where there are none, train, tell what was learned.

Run `python -m examples.quickstart.run [key=value ...]` in a clone of the repository; the settings go to `vime train`.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from examples.quickstart.make_assets import EXPERTS_FOLDER, FOLDER
from examples.quickstart.summary import summarise
from vime_core.config.compose import compose
from vime_core.errors import VimeError
from vime_core.run.folder import RunFolder

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

EXPERIMENTS: dict[str, tuple[Path, tuple[str, ...]]] = {
    "quickstart": (FOLDER, ()),
    "quickstart_moe": (EXPERTS_FOLDER, ("--experts",)),
}
"""Experiment -> what it trains, and how that is made."""


def main(settings: Sequence[str]) -> int:
    """Returns the exit status: that of the first part that fails."""
    chosen = [setting.removeprefix("experiment=") for setting in settings if setting.startswith("experiment=")]
    overrides = [*settings] if chosen else ["experiment=quickstart", *settings]
    folder, options = EXPERIMENTS.get(chosen[-1] if chosen else "quickstart", EXPERIMENTS["quickstart"])
    try:
        tree = compose(overrides).tree  # a mistake in the settings is told before the model is made
        if not folder.exists():
            print(f"making the model and the problems in {folder}, once: about a minute", flush=True)
            if status := call("examples.quickstart.make_assets", *options):
                return status
        start = time.time()
        if status := call("vime_core.cli", "train", *overrides):
            return status
        print()
        print(summarise(find_run(tree, start)))
    except VimeError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def call(module: str, *arguments: str) -> int:
    """Run a module in a process of its own; returns its exit status.

    Ctrl-C reaches both processes: the other one ends in its own order, and this one waits for it.
    """
    process = subprocess.Popen([sys.executable, "-m", module, *arguments])
    while True:
        try:
            status = process.wait()
        except KeyboardInterrupt:
            continue
        return 128 - status if status < 0 else status


def find_run(tree: Mapping[str, Any], start: float) -> RunFolder:
    """The folder of the run with the configuration `tree`, begun after `start` (seconds since the epoch).

    Others may be running, so the newest folder is not always the one.

    Raises:
        VimeError: when there is none.
    """
    if tree["resume"]["run"] is not None:
        return RunFolder.find(Path(tree["resume"]["run"]))
    root = Path(tree["run"]["root"])
    files = [file for file in root.glob("*/*/config.yaml") if file.stat().st_mtime >= start]
    for file in sorted(files, key=lambda file: file.stat().st_mtime, reverse=True):
        folder = RunFolder.find(file.parent)
        if folder.read_config() == tree:
            return folder
    raise VimeError(f"the run left no folder of its own below {root}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
