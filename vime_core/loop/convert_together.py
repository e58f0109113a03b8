"""A conversion in several processes, seen by the one that starts them; `convert_process` is what they run.

They meet at a file; what each has done, and why it failed, lies in files too.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vime_core import errors
from vime_core.accelerators.cpu import CpuAccelerator
from vime_core.accelerators.network import LOOPBACK_ENVIRONMENT
from vime_core.accelerators.threads import usable_cores
from vime_core.cluster.guard import GuardedProcess
from vime_core.config.schema import AcceleratorConfig
from vime_core.errors import TrainerError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

POLL_S = 0.05
CAUSE_S = 2.0
"""For the others to end too when a process has failed: the first cause is looked for among all of them."""
STOP_S = 5.0


@dataclass(frozen=True, slots=True)
class Share:
    """What one of the processes has to do."""

    source: str
    """Model folder, or checkpoint where `model` is given."""
    output: str
    model: str | None
    backend: str
    folder: str
    """Where the processes meet."""
    rank: int
    processes: int
    threads: int

    @property
    def store(self) -> Path:
        """At which torch.distributed lets the ranks meet."""
        return Path(self.folder) / "store"

    @property
    def progress(self) -> Path:
        """Gets a line with a number of bytes for each parameter that is done."""
        return Path(self.folder) / f"progress-{self.rank}"

    @property
    def error(self) -> Path:
        """Gets the class of the error that ended the process and its one line, as JSON."""
        return Path(self.folder) / f"error-{self.rank}"

    @property
    def log(self) -> Path:
        """Gets what the process prints."""
        return Path(self.folder) / f"log-{self.rank}"


def convert_together(
    source: Path, output: Path, progress: Callable[[int], None], *, model: Path | None, backend: str, processes: int
) -> None:
    """Let each process write its share; when one fails the others are ended.

    Args:
        source: model folder, or checkpoint with `model`.
        output: as `convert.write_share` has it.
        progress: gets the bytes that are done, of all processes.
        model: folder of the model that a checkpoint is of.
        backend: training backend whose checkpoints are meant.
        processes: their number.

    Raises:
        VimeError: what the first process that failed told.
        TrainerError: names a process that died.
    """
    threads = max(1, usable_cores() // processes)
    with tempfile.TemporaryDirectory(prefix="vime-convert-") as folder, ExitStack() as stack:
        running = []
        for rank in range(processes):
            share = Share(
                source=str(source.absolute()),
                output=str(output),
                model=None if model is None else str(model.absolute()),
                backend=backend,
                folder=folder,
                rank=rank,
                processes=processes,
                threads=threads,
            )
            command = [sys.executable, "-m", "vime_core.loop.convert_process", json.dumps(asdict(share))]
            process = GuardedProcess(command, env=_environment(threads), log=share.log)
            stack.callback(process.stop, STOP_S)
            process.start()
            running.append((share, process))
        _watch(running, progress)


def _environment(threads: int) -> Mapping[str, str]:
    accelerator = CpuAccelerator(AcceleratorConfig(name="cpu"))
    return os.environ | LOOPBACK_ENVIRONMENT | accelerator.child_environment((), threads)


def _watch(running: Sequence[tuple[Share, GuardedProcess]], progress: Callable[[int], None]) -> None:
    """Until all have ended well."""
    told = 0
    while True:
        statuses = [process.poll() for _, process in running]
        done = sum(_done(share.progress) for share, _ in running)
        progress(done - told)
        told = done
        if any(statuses):
            _raise_cause(running)
        if None not in statuses:
            return
        time.sleep(POLL_S)


def _done(file: Path) -> int:
    """Bytes that a process has told; a number is whole when its line is."""
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    return sum(int(line) for line in lines if line.endswith("\n"))


def _raise_cause(running: Sequence[tuple[Share, GuardedProcess]]) -> None:
    """A process that died told nothing; those that waited for it then told of a connection that broke."""
    end = time.monotonic() + CAUSE_S
    while None in (process.poll() for _, process in running) and time.monotonic() < end:
        time.sleep(POLL_S)
    failed = [(share, process) for share, process in running if process.poll()]
    for share, process in failed:
        if not share.error.exists():
            said = "".join(f" ({line})" for line in process.log_tail(1).splitlines())
            raise TrainerError(
                f"process {share.rank} of {len(running)} {process.end()}{said}; the others were ended, and nothing was "
                "written"
            )
    first = min((share.error for share, _ in failed), key=lambda file: file.stat().st_mtime_ns)
    told = json.loads(first.read_text())
    raise getattr(errors, told["type"], TrainerError)(told["told"])
