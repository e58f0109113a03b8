"""The process behind `vime_core.cluster.keeper.Keeper`: `python -m vime_core.cluster.keeper_process ...`."""

from __future__ import annotations

import glob
import json
import logging
import os
import shutil
import signal
import socket
import socketserver
import sys
import threading
import time
from pathlib import Path
from typing import Any

from vime_core.cluster import processes
from vime_core.cluster.keeper import ORDERLY
from vime_core.cluster.processes import ProcessId
from vime_core.log import log_to

END_DEADLINE_S = 120.0
"""What is still alive after this long (a driver may hold it in the kernel) is named in the log and left."""
SHARED_MEMORY = Path("/dev/shm")

log = logging.getLogger("vime_core.cluster.keeper")


class Registry:
    """What the keeper ends; filled by handler threads."""

    def __init__(self) -> None:
        """Starts empty."""
        self._lock = threading.Lock()
        self._driver = os.getppid()
        self._processes: set[ProcessId] = set()
        self._paths: set[Path] = set()

    def handle(self, message: dict[str, Any]) -> None:
        """Carry out one request of `KeeperClient`."""
        with self._lock:
            match message["request"]:
                case "ping":
                    pass
                case "register_processes":
                    self._processes |= {ProcessId(pid, start) for pid, start in message["processes"] if pid > 1}
                case "forget_process":
                    self._processes = {known for known in self._processes if known.pid != message["pid"]}
                case "register_path":
                    self._paths.add(Path(message["path"]))
                case other:
                    raise ValueError(f"unknown request {other!r}")

    def processes(self) -> set[ProcessId]:
        """Registered processes other than the keeper and its driver."""
        with self._lock:
            return {known for known in self._processes if known.pid not in (os.getpid(), self._driver)}

    def paths(self) -> set[Path]:
        """Registered paths."""
        with self._lock:
            return set(self._paths)


class Handler(socketserver.StreamRequestHandler):
    """Answers each line of a connection once it has been carried out."""

    server: Server

    def handle(self) -> None:
        """Until the client closes."""
        for line in self.rfile:
            try:
                self.server.registry.handle(json.loads(line))
                error = None
            except (ValueError, KeyError, TypeError) as refusal:
                error = f"{type(refusal).__name__}: {refusal}"
            self.wfile.write(json.dumps({"error": error}).encode() + b"\n")


class Server(socketserver.ThreadingUnixStreamServer):
    """Serves the listening socket that the driver has bound."""

    daemon_threads = True

    def __init__(self, listener: int, registry: Registry) -> None:
        """Args: the listening socket's file descriptor, and where requests go."""
        super().__init__("", Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = socket.socket(fileno=listener)
        self.registry = registry

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away in the middle of a call is worth a line, not the keeper's end."""
        log.warning("a request broke off: %s", sys.exc_info()[1])


def main(run_id: str, home: Path, listener: int, lifeline: int) -> None:
    """Serve registrations until the driver says goodbye or vanishes; end what is left of what is registered."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    registry = Registry()
    server = Server(listener, registry)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    if os.read(lifeline, 1) != ORDERLY:
        log.info("the driver of run %s has gone: ending what it started", run_id)
    # After an orderly end there is nothing left, unless a part was stopped and could not be told to end.
    end_processes(registry, END_DEADLINE_S)
    delete_paths([*_segments(run_id), *registry.paths()])
    shutil.rmtree(home, ignore_errors=True)


def end_processes(registry: Registry, deadline_s: float) -> None:
    """Kill what is registered, also while it ends, until nothing of it is alive or the deadline passes."""
    deadline = time.monotonic() + deadline_s
    told: set[ProcessId] = set()
    while True:
        names = {process: processes.name(process) for process in registry.processes()}
        ended = processes.end_trees(names)
        for process in sorted(ended - told):
            log.info("killed %d %s", process.pid, names.get(process, "(descendant)"))
        told |= ended
        left = {process for process in registry.processes() | told if processes.is_alive(process)}
        if not left:
            return
        if time.monotonic() > deadline:
            log.error("cannot be ended: %s", ", ".join(str(process.pid) for process in sorted(left)))
            return
        time.sleep(0.02)


def delete_paths(paths: list[Path]) -> None:
    """Delete files and folders; what has gone already is no error, what cannot be deleted is named."""
    for path in paths:
        try:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        except FileNotFoundError:
            continue
        except OSError as error:
            log.warning("cannot delete %s: %s", path, error)
        else:
            log.info("deleted %s", path)


def _segments(run_id: str) -> list[Path]:
    return sorted(SHARED_MEMORY.glob(f"vime-{glob.escape(run_id)}-*"))


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s", stream=sys.stderr)
    with log_to(Path(sys.argv[5]), "keeper"):
        main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
