"""One scoring process as its owner sees it: started, asked, timed, killed."""

from __future__ import annotations

import json
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from vime_core.errors import DeadlineError, PluginError, ResourceError, RewardError
from vime_core.rewards.clock import ActiveClock
from vime_core.rewards.combine import Part
from vime_core.rewards.frames import FrameReader, pack
from vime_core.types import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from vime_core.config.schema import RewardPoolConfig
    from vime_core.rewards.spec import RewardSpec
    from vime_core.types import Prompt, Sample, VerdictStatus

START_DEADLINE_S = 300.0
"""For importing and building the rewards, on a machine that is busy with the start of trainer and engines."""

ANSWER_MARGIN_S = 60.0
"""On top of the time limit, for taking a task in before the first reward is called."""

KILL_DEADLINE_S = 30.0

WALL_FACTOR = 30
"""Past so many time limits by the wall clock a verdict is late however little of that time it could run."""

OWN_END_S = 1.0
"""For a process that has closed its connection to end by itself and leave its exit status."""

_TICK_S = 0.5
"""Longest time until the end of a process whose socket lives on, in a child of it, is noticed."""


class Interrupted(Exception):
    """The pool is being closed."""


class _Lost(Exception):
    """The process has ended."""


class _Late(Exception):
    """Nothing came in time."""


class ScoringProcess:
    """Runs in its own session, and ends with the *thread* that starts it: that must live as long as the pool.

    Args:
        specs: The rewards.
        config: Limits.
        interrupt: File descriptor that becomes readable when the pool is being closed.
    """

    def __init__(self, specs: Sequence[RewardSpec], config: RewardPoolConfig, interrupt: int) -> None:
        self._specs = specs
        self._config = config
        self._interrupt = interrupt
        self._reader = FrameReader()
        self._connection, theirs = socket.socketpair()
        command = [sys.executable, "-m", "vime_core.rewards.worker", str(theirs.fileno()), str(os.getpid())]
        single_threaded = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        with theirs:
            try:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=2,  # what a reward prints must not mix with the driver's own output
                    pass_fds=(theirs.fileno(),),
                    env={**os.environ, **single_threaded},
                    start_new_session=True,
                )
            except OSError as error:
                self._connection.close()
                raise ResourceError(
                    f"a scoring process cannot be started: {error}; lower reward_pool.workers"
                ) from error

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    def has_ended(self) -> bool:
        """Whether the process is gone, for whatever reason; its pid stays taken until `kill`."""
        if self._process.returncode is not None:
            return True
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def build(self) -> None:
        """Send the rewards and wait until they are built.

        Raises:
            PluginError: when a reward cannot be built.
            RewardError: when the process ends instead.
            DeadlineError: when it takes too long.
            Interrupted: when the pool is being closed.
        """
        limit = self._config.memory_limit_mib
        rewards = [(spec.name, spec.factory, pickle.dumps(spec.config)) for spec in self._specs]
        setup = pickle.dumps((sys.path, None if limit is None else limit << 20, rewards))
        try:
            remaining = _until(START_DEADLINE_S)
            self._send(setup, remaining)
            answer = self._receive(remaining)
        except _Late as error:
            raise DeadlineError(
                f"a scoring process did not start within {START_DEADLINE_S:.0f} s; see what the rewards "
                f"{', '.join(spec.name for spec in self._specs)} import"
            ) from error
        except _Lost as error:
            raise RewardError(f"a scoring process {self._end()} while it started; see its output above") from error
        if answer["kind"] == "failed":
            raise PluginError(f"reward {answer['reward']} cannot be built: {answer['cause']}")

    def score(self, sample: Sample, prompt: Prompt) -> list[Part]:
        """What each reward says; ends after the first `timeout` or `error`. The process may have ended then.

        Raises:
            Interrupted: when the pool is being closed.
        """
        try:
            task = pickle.dumps((sample, prompt), pickle.HIGHEST_PROTOCOL)
        except Exception as error:
            return [self._part(0, "error", f"sample or prompt cannot be sent to a scoring process: {error!r}")]
        current = 0
        try:
            remaining = _until(self._config.time_limit_s + ANSWER_MARGIN_S)
            self._send(task, remaining)
            answer = self._receive(remaining)
            while answer["kind"] == "started":
                current = answer["reward"]
                answer = self._receive(self._time_limit())
        except _Lost:
            return [self._part(current, "error", f"its scoring process {self._end()}")]
        except _Late:
            self.kill()
            limit = self._config.time_limit_s
            return [self._part(current, "timeout", f"no verdict within reward_pool.time_limit_s={limit:g}")]
        verdicts = [Verdict(**fields) for fields in answer["verdicts"]]
        return [Part(spec.name, spec.config.weight, v) for spec, v in zip(self._specs, verdicts, strict=False)]

    def kill(self) -> None:
        """End the process and what it started in its session, and wait for it; safe to call twice.

        Raises:
            RewardError: when it does not end, because a driver of the system holds it.
        """
        if self._process.returncode is None:
            os.killpg(self.pid, signal.SIGKILL)
        try:
            self._process.wait(KILL_DEADLINE_S)
        except subprocess.TimeoutExpired as error:
            raise RewardError(f"scoring process {self.pid} does not end within {KILL_DEADLINE_S:.0f} s") from error
        finally:
            self._connection.close()

    def _part(self, index: int, status: VerdictStatus, detail: str) -> Part:
        spec = self._specs[index]
        return Part(spec.name, spec.config.weight, Verdict(0.0, status, None, detail))

    def _end(self) -> str:
        """How the process ended, once it has closed its connection."""
        remaining = _until(OWN_END_S)
        while not self.has_ended() and remaining() > 0:
            time.sleep(0.005)
        self.kill()
        status = self._process.returncode
        return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with exit status {status}"

    def _time_limit(self) -> Callable[[], float]:
        """Seconds left to a reward that starts now."""
        clock, limit = ActiveClock(self.pid), self._config.time_limit_s
        return lambda: min(limit - clock.elapsed(), WALL_FACTOR * limit - clock.wall())

    def _send(self, body: bytes, remaining: Callable[[], float]) -> None:
        unsent = memoryview(pack(body))
        while unsent:
            self._wait(select.POLLOUT, remaining)
            try:
                unsent = unsent[self._connection.send(unsent, socket.MSG_DONTWAIT) :]
            except BlockingIOError:
                continue
            except (BrokenPipeError, ConnectionResetError) as error:
                raise _Lost from error

    def _receive(self, remaining: Callable[[], float]) -> dict[str, Any]:
        while (body := self._reader.take()) is None:
            self._wait(select.POLLIN, remaining)
            try:
                more = self._reader.feed(self._connection)
            except ConnectionResetError as error:
                raise _Lost from error
            if not more:
                raise _Lost
        message: dict[str, Any] = json.loads(body)
        return message

    def _wait(self, event: int, remaining: Callable[[], float]) -> None:
        """Return when the connection is ready. What is there is taken also when this thread looks late."""
        poll = select.poll()
        poll.register(self._connection, event)
        poll.register(self._interrupt, select.POLLIN)
        while True:
            left = remaining()
            ready = [descriptor for descriptor, _ in poll.poll(max(0.0, min(left, _TICK_S)) * 1000)]
            if self._interrupt in ready:
                raise Interrupted
            if ready:
                return
            if self.has_ended():
                raise _Lost
            if left <= 0:
                raise _Late


def _until(seconds: float) -> Callable[[], float]:
    deadline = time.monotonic() + seconds
    return lambda: deadline - time.monotonic()
