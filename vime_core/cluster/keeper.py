"""The keeper: one small process a node that ends what a run started there when the driver vanishes.

Servers are grandchildren of Ray workers and outlive them, and Ray's own agents outlive a killed driver by minutes.
The keeper holds the read end of a pipe to the process that started it. When that process ends without `close`, the
keeper kills what is registered, with all descendants, and removes the run's shared-memory segments.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vime_core.cluster import processes
from vime_core.cluster.lifeline import Lifeline
from vime_core.cluster.witness import Vital
from vime_core.errors import DeadlineError, KeeperError, ResourceError

if TYPE_CHECKING:
    from collections.abc import Collection

START_DEADLINE_S = 60.0
HEALTH_DEADLINE_S = 120.0
REQUEST_DEADLINE_S = 30.0
ORDERLY = b"q"
"""What the driver sends over the pipe before it closes it in an orderly end."""
MAX_ADDRESS_BYTES = 107
"""unix(7): sun_path holds 108 bytes with the final zero."""


class Keeper:
    """The driver's handle on its node's keeper."""

    def __init__(
        self, address: str, process: subprocess.Popen[bytes], lifeline: Lifeline, health_deadline_s: float
    ) -> None:
        """Made by `start`."""
        self.address = address
        """Unix socket, for `KeeperClient`."""
        self._process = process
        self._lifeline = lifeline
        self._vital = Vital("the keeper", process.pid, health_deadline_s)

    @classmethod
    def start(
        cls,
        run_id: str,
        folder: Path,
        health_deadline_s: float = HEALTH_DEADLINE_S,
        log_file: Path = Path(os.devnull),
    ) -> Keeper:
        """Start a keeper for the calling process and wait until it answers.

        Args:
            run_id: Letters, digits and underscores; `/dev/shm/vime-<run_id>-*` are the run's segments.
            folder: Gets a `keeper.log` with its output, when it exists.
            health_deadline_s: How long it may be stopped, see `check`.
            log_file: Gets a line for what it ends, see `vime_core.log`.

        Raises:
            ResourceError: when the keeper cannot be started.
        """
        if not re.fullmatch(r"\w+", run_id, re.ASCII):
            raise ValueError(f"run id {run_id!r} must be letters, digits and underscores")
        home = _private_folder(run_id)
        lifeline = Lifeline()
        try:
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(str(home / "socket"))
                listener.listen(128)
                process = _spawn([run_id, str(home)], folder, log_file, listener.fileno(), lifeline.read_end)
        except BaseException:
            lifeline.close()
            shutil.rmtree(home, ignore_errors=True)
            raise
        finally:
            lifeline.handed_over()
        keeper = cls(str(home / "socket"), process, lifeline, health_deadline_s)
        try:
            KeeperClient(keeper.address, START_DEADLINE_S).ping()
        except BaseException:
            keeper.close(0)
            raise
        return keeper

    @property
    def pid(self) -> int:
        """Process id of the keeper."""
        return self._process.pid

    def is_alive(self) -> bool:
        """Whether the keeper still watches."""
        return self._process.poll() is None

    def check(self) -> None:
        """Return when the keeper watches; to be asked regularly.

        Raises:
            KeeperError: when it has ended, or has been stopped for too long.
        """
        self._process.poll()  # takes note of its end
        trouble = self._vital.trouble()
        if trouble is not None:
            raise KeeperError(f"{trouble}; without it the run could leave processes behind: start it again")

    def close(self, deadline_s: float) -> None:
        """Tell the keeper that the run ended in order: it ends what is still there, and goes. Safe to call twice.

        A keeper that does not go within `deadline_s` seconds is killed.
        """
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it has gone already
            self._lifeline.send(ORDERLY)
        self._lifeline.close()
        try:
            self._process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._vital.close()
        shutil.rmtree(Path(self.address).parent, ignore_errors=True)


class KeeperClient:
    """Registers with a keeper, from any process of the node; every call returns once the keeper has it."""

    def __init__(self, address: str, deadline_s: float = REQUEST_DEADLINE_S) -> None:
        """Connects anew for each call, so it may be shared, pickled and forked.

        Args:
            address: `Keeper.address`.
            deadline_s: Longest wait for an answer.
        """
        self._address = address
        self._deadline_s = deadline_s

    def ping(self) -> None:
        """Return when the keeper answers.

        Raises:
            DeadlineError: when it does not answer in time; so do all other methods.
            KeeperError: when there is no keeper at the address; so do all other methods.
        """
        self._ask({"request": "ping"})

    def register_process(self, pid: int) -> None:
        """The keeper will end this process and its descendants. A process that has ended already is no error."""
        process = processes.identify(pid)
        if process is not None:
            self.register_identified([process])

    def register_tree(self, pid: int) -> None:
        """Like `register_process`, for a root that may die before its descendants do: they are registered now."""
        root = processes.identify(pid)
        if root is not None:
            self.register_identified([root, *processes.descendants(pid)])

    def register_identified(self, found: list[processes.ProcessId]) -> None:
        """Register processes by pid and start time; one that does not match when it comes to it is left alone."""
        self._ask({"request": "register_processes", "processes": found})

    def forget_process(self, pid: int) -> None:
        """The keeper will not end this process, unless it descends from one that is registered."""
        self._ask({"request": "forget_process", "pid": pid})

    def register_path(self, path: Path | str) -> None:
        """The keeper will delete this file or folder, by its absolute path.

        Raises:
            ValueError: for a path that no run can own: relative, or `/` or a folder directly below it.
        """
        path = os.fspath(path)
        if len(Path(path).parts) < 3 or not os.path.isabs(path):
            raise ValueError(f"{path} is no path that a keeper may delete")
        self._ask({"request": "register_path", "path": path})

    def _ask(self, message: dict[str, Any]) -> None:
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(self._deadline_s)
                connection.connect(self._address)
                connection.sendall(json.dumps(message).encode() + b"\n")
                answer = connection.makefile("rb").readline()
        except TimeoutError as error:
            raise DeadlineError(
                f"the keeper at {self._address} did not answer {message['request']} within {self._deadline_s:g} s"
            ) from error
        except OSError as error:
            raise self._gone() from error
        if not answer.endswith(b"\n"):
            raise self._gone()
        refusal = json.loads(answer)["error"]
        if refusal:
            raise RuntimeError(f"the keeper refused {message}: {refusal}")

    def _gone(self) -> KeeperError:
        return KeeperError(
            f"the keeper at {self._address} has gone (was it killed?): start the run again; keeper.log may say why"
        )


def register_descendants(client: KeeperClient, pid: int, but: Collection[processes.ProcessId] = frozenset()) -> int:
    """Register all present descendants of a process but those that are named, and return how many.

    The keeper itself may be among them; it spares itself.
    """
    found = processes.descendants(pid) - set(but)
    client.register_identified(sorted(found))
    return len(found)


def _private_folder(run_id: str) -> Path:
    """A folder that only this user may enter, with a path short enough for a socket."""
    for parent in (tempfile.gettempdir(), "/tmp"):
        if len(os.fsencode(f"{parent}/vime-{run_id}-12345678/socket")) <= MAX_ADDRESS_BYTES:
            return Path(tempfile.mkdtemp(prefix=f"vime-{run_id}-", dir=parent))
    raise ResourceError(f"no folder for the keeper's socket: the run id {run_id} is too long")


def _spawn(identity: list[str], folder: Path, log_file: Path, listener: int, lifeline: int) -> subprocess.Popen[bytes]:
    """The keeper runs in its own session, out of reach of Ctrl-C, and holds neither terminal nor current folder."""
    with contextlib.ExitStack() as stack:
        output: Any = subprocess.DEVNULL
        if folder.is_dir():
            output = stack.enter_context((folder / "keeper.log").open("ab"))
        arguments = [*identity, str(listener), str(lifeline), str(log_file.absolute())]
        return subprocess.Popen(
            [sys.executable, "-m", "vime_core.cluster.keeper_process", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=(listener, lifeline),
            start_new_session=True,
            cwd="/",
        )
