"""Several runs, one after the other, each in a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def run_jobs(jobs: Sequence[Sequence[str]], options: Sequence[str]) -> int:
    """Run `vime train` for each job; the first that does not succeed ends the series.

    Args:
        jobs: the overrides of each job.
        options: further arguments, the same for all.

    Returns:
        The exit status of the last job that ran.
    """
    status = 0
    for number, job in enumerate(jobs, start=1):
        print(f"job {number} of {len(jobs)}: {' '.join(job)}", flush=True)
        status = _run([sys.executable, "-m", "vime_core.cli", "train", *job, *options])
        if status:
            print(f"job {number} ended with status {status}; {len(jobs) - number} not started", file=sys.stderr)
            break
    return status


def _run(command: Sequence[str]) -> int:
    # Ctrl-C reaches the whole foreground group: the run ends itself in order, and this process waits for that. A
    # handler, unlike SIG_IGN, is not inherited.
    before = signal.signal(signal.SIGINT, lambda signum, frame: None)
    try:
        status = subprocess.Popen(command).wait()
    finally:
        signal.signal(signal.SIGINT, before)
    return 128 - status if status < 0 else status
