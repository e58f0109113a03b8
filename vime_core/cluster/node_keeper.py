"""The process that owns the keeper of a node in the place of a Ray actor: `python -m vime_core.cluster.node_keeper`.

When an actor ends, Ray kills its children (not their children), and a keeper among them could clean up nothing. This
process is the child that may be killed; the keeper is its own child and notices.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

from vime_core.cluster.keeper import START_DEADLINE_S, Keeper, KeeperClient
from vime_core.errors import ResourceError, VimeError

ORDERLY = b"q\n"


class NodeKeeper:
    """The actor's handle on it. Arguments as of `Keeper.start`."""

    def __init__(
        self, run_id: str, folder: Path, *, health_deadline_s: float, log_file: Path, deadline_s: float
    ) -> None:
        """Start both and wait until the keeper answers.

        Args:
            run_id: of the run.
            folder: for the keeper's output.
            health_deadline_s: how long the keeper may be stopped.
            log_file: of the run.
            deadline_s: for its end in order, before it is killed.

        Raises:
            ResourceError: when the keeper cannot be started.
        """
        self._health_deadline_s = health_deadline_s
        self._deadline_s = deadline_s
        settings = [run_id, str(folder), str(health_deadline_s), str(log_file), str(deadline_s)]
        self._owner = subprocess.Popen(
            [sys.executable, "-m", __name__, *settings],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        told = _pipe(self._owner.stdout).readline()
        try:
            self.address: str = json.loads(told)["address"]
        except (ValueError, KeyError, TypeError):
            rest, _ = self._owner.communicate(timeout=START_DEADLINE_S)
            lines = (told + rest).decode(errors="replace").split("\n")
            raise ResourceError(f"the node's keeper did not start: {lines[-2] if len(lines) > 1 else lines}") from None

    def check(self) -> None:
        """Return when the keeper answers.

        Raises:
            KeeperError: when it has gone.
            DeadlineError: when it has been stopped for too long.
        """
        KeeperClient(self.address, self._health_deadline_s).ping()

    def close(self) -> None:
        """The run ends in order; safe to call twice."""
        with contextlib.suppress(BrokenPipeError, ValueError):  # it has gone already, or was told before
            _pipe(self._owner.stdin).write(ORDERLY)
            _pipe(self._owner.stdin).close()
        try:
            self._owner.wait(self._deadline_s + START_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self._owner.kill()
            self._owner.wait()
        _pipe(self._owner.stdout).close()


def _pipe(stream: IO[Any] | None) -> IO[Any]:
    if stream is None:
        raise RuntimeError("the process has no such pipe")
    return stream


def main(run_id: str, folder: Path, health_deadline_s: float, log_file: Path, deadline_s: float) -> None:
    """Own a keeper until standard input says that the run has ended in order, or closes without a word."""
    try:
        keeper = Keeper.start(run_id, folder, health_deadline_s=health_deadline_s, log_file=log_file)
    except VimeError as error:
        raise SystemExit(str(error)) from error
    print(json.dumps({"address": keeper.address}), flush=True)  # noqa: T201 - what the actor reads
    if sys.stdin.buffer.readline() == ORDERLY:
        keeper.close(deadline_s)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]), Path(sys.argv[4]), float(sys.argv[5]))
