"""One scoring process as its owner sees it: started, given tasks, timed, killed."""

from __future__ import annotations

import json
import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from vime_core.errors import DeadlineError, PluginError, ResourceError, RewardError
from vime_core.rewards.channel import Channel, Interrupted, Lost
from vime_core.rewards.clock import ActiveClock
from vime_core.rewards.combine import Part
from vime_core.rewards.progress import Progress, split_running
from vime_core.rewards.tasks import settle
from vime_core.rewards.wire import encode
from vime_core.types import SILENT_STATUSES, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from vime_core.config.schema import RewardPoolConfig
    from vime_core.rewards.spec import RewardSpec
    from vime_core.rewards.tasks import Task
    from vime_core.types import VerdictStatus

__all__ = ["Interrupted", "ScoringProcess"]

log = logging.LoggerAdapter(logging.getLogger(__name__), {"actor": "reward pool"})

START_DEADLINE_S = 300.0
"""For importing and building the rewards, on a machine that is busy with the start of trainer and engines."""

INTAKE_DEADLINE_S = 60.0
"""For taking tasks in before the first reward is called."""

KILL_DEADLINE_S = 30.0

WALL_FACTOR = 30
"""Past so many time limits by the wall clock a verdict is late however little of that time it could run."""

OWN_END_S = 1.0
"""For a process that has closed its connection to end by itself and leave its exit status."""

_LONGEST_TICK_S = 0.5
"""Longest time until the end of a process whose socket lives on, in a child of it, is noticed."""

_TICKS_PER_LIMIT = 8
"""How often a process is looked at within a time limit: a task may take two ticks longer."""

_NEVER_SEEN = -1


class _Late(Exception):
    """Nothing came in time."""


class ScoringProcess:
    """Runs in its own session, and ends with the *thread* that starts it: that must live as long as the pool.

    Takes tasks in batches, also while it works on others. A time limit counts from when a reward is called. What the
    rewards said is in shared memory as soon as they have said it, so that killing the process costs no verdict but
    that of the task it is busy with.

    Args:
        specs: The rewards it builds, in order.
        config: Limits.
        interrupt: A descriptor that becomes readable when the pool is being closed.
    """

    def __init__(self, specs: Sequence[RewardSpec], config: RewardPoolConfig, interrupt: int) -> None:
        self._specs = specs
        self._config = config
        self._names = [(spec.name, spec.config.weight) for spec in specs]
        self._text_only = all(spec.text_only for spec in specs)
        self._limits = [spec.config.time_limit_s or config.time_limit_s for spec in specs]
        self._tick_s = min(_LONGEST_TICK_S, min(self._limits) / _TICKS_PER_LIMIT)
        self._pending: dict[int, Task] = {}
        self._said: dict[int, list[Part]] = {}
        self._sent = 0
        memory = Progress.new_file()
        self._progress = Progress(memory)
        ours, theirs = socket.socketpair()
        self._channel = Channel(ours, interrupt)
        descriptors = (theirs.fileno(), memory)
        command = [sys.executable, "-m", "vime_core.rewards.worker", *map(str, descriptors), str(os.getpid())]
        single_threaded = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        with theirs:
            try:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=2,  # what a reward prints must not mix with the driver's own output
                    pass_fds=descriptors,
                    env={**os.environ, **single_threaded},
                    start_new_session=True,
                )
            except OSError as error:
                self._channel.close()
                raise ResourceError(
                    f"a scoring process cannot be started: {error}; lower reward_pool.workers"
                ) from error
            finally:
                os.close(memory)

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    @property
    def pending(self) -> int:
        """Tasks that it holds and has not finished."""
        return len(self._pending)

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
        self._channel.send(pickle.dumps((sys.path, None if limit is None else limit << 20, rewards)))
        deadline = time.monotonic() + START_DEADLINE_S
        try:
            answer = self._next_message(lambda: time.monotonic() > deadline)
        except _Late as error:
            raise DeadlineError(
                f"a scoring process did not start within {START_DEADLINE_S:.0f} s; see what the rewards "
                f"{', '.join(spec.name for spec in self._specs)} import"
            ) from error
        except Lost as error:
            raise RewardError(f"a scoring process {self._end()} while it started; see its output above") from error
        if answer["kind"] == "failed":
            raise PluginError(f"reward {answer['reward']} cannot be built: {answer['cause']}")
        log.info("scoring process %d is ready", self.pid)

    def send(self, tasks: Sequence[Task]) -> None:
        """Hand over tasks, which it scores in this order after those it holds.

        A task that cannot be sent is settled as an `error`.
        """
        try:
            encoded = encode(
                [task.sample for task in tasks], [task.prompt for task in tasks], text_only=self._text_only
            )
        except Exception as error:
            if len(tasks) == 1:
                cause = f"sample or prompt cannot be sent to a scoring process: {error!r}"
                tasks[0].settle([self._part(0, "error", cause)])
                return
            for task in tasks:
                self.send([task])
            return
        self._pending.update(enumerate(tasks, self._sent))
        self._sent += len(tasks)
        self._channel.send(encoded.body, encoded.aside)

    def receive(self) -> list[Task]:
        """Wait for verdicts and settle what is finished. The process may have ended then.

        Returns:
            Tasks that a process which ended had not begun.

        Raises:
            Interrupted: when the pool is being closed.
        """
        watch = _Watch(self._progress, self._limits, self.pid)
        try:
            self._note(self._next_message(watch.is_late))
        except Lost:
            end = self._end()
            log.warning("scoring process %d %s", self.pid, end)
            return self._bury(None, "error", f"its scoring process {end}")
        except _Late:
            task, reward = split_running(watch.running)
            self._kill()
            log.warning("scoring process %d was killed: %s", self.pid, self._lateness(reward))
            return self._bury(task, "timeout", self._lateness(reward))
        return []

    def kill(self) -> None:
        """End the process and what it started in its session, and wait for it; safe to call twice.

        Raises:
            RewardError: when it does not end, because a driver of the system holds it.
        """
        try:
            self._kill()
        finally:
            self._channel.close()
            self._progress.close()

    def _kill(self) -> None:
        if self._process.returncode is None:
            os.killpg(self.pid, signal.SIGKILL)
        try:
            self._process.wait(KILL_DEADLINE_S)
        except subprocess.TimeoutExpired as error:
            raise RewardError(f"scoring process {self.pid} does not end within {KILL_DEADLINE_S:.0f} s") from error

    def _note(self, lines: Sequence[tuple[int, int, float, VerdictStatus, str | None, str]]) -> None:
        """Settle the tasks that these lines finish; a line that came before says nothing new."""
        last = len(self._specs) - 1
        finished = []
        for number, reward, score, status, extracted, detail in lines:
            parts = self._said.get(number) or []
            if number not in self._pending or reward != len(parts):
                continue
            name, weight = self._names[reward]
            parts.append(Part(name, weight, Verdict(score, status, extracted, detail)))
            if reward == last or status in SILENT_STATUSES:
                self._said.pop(number, None)
                finished.append((self._pending.pop(number), parts))
            else:
                self._said[number] = parts
        settle(finished)

    def _bury(self, culprit: int | None, status: VerdictStatus, cause: str) -> list[Task]:
        """Settle what the ended process had said, and the task it ended over; returns those it had not begun.

        Args:
            culprit: Number of the task that it was killed for; None when it ended by itself.
            status: For the task it ended over.
            cause: The same.
        """
        for lines in self._channel.rest():
            self._note(lines)
        self._note(_parse(self._progress.lines()))
        number, reward = split_running(self._progress.running())
        if culprit in (None, number) and number in self._pending:
            parts = self._said.get(number, [])
            self._pending.pop(number).settle([*parts, self._part(reward, status, cause)])
        left = list(self._pending.values())
        self._pending.clear()
        if number < 0 and len(left) == 1:  # not even begun: taking it in is what ended the process
            left.pop().settle([self._part(0, status, cause)])
        for task in left:
            task.alone = task.alone or number < 0
        return left

    def _part(self, index: int, status: VerdictStatus, detail: str) -> Part:
        return Part(*self._names[index], Verdict(0.0, status, None, detail))

    def _lateness(self, reward: int) -> str:
        own = self._specs[reward].config.time_limit_s
        setting = "reward_pool.time_limit_s" if own is None else f"rewards.{self._specs[reward].name}.time_limit_s"
        return f"no verdict within {setting}={self._limits[reward]:g}"

    def _end(self) -> str:
        """How the process ended, once it has closed its connection."""
        deadline = time.monotonic() + OWN_END_S
        while not self.has_ended() and time.monotonic() < deadline:
            time.sleep(0.005)
        self._kill()
        status = self._process.returncode
        return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with exit status {status}"

    def _next_message(self, is_late: Callable[[], bool]) -> Any:
        """The next message. What is there is taken also when this thread looks late."""
        while True:
            message = self._channel.exchange(self._tick_s)
            if message is not None:
                return message
            if self.has_ended():
                raise Lost
            if is_late():
                raise _Late


class _Watch:
    """Times whatever a process is busy with, from when it is first seen."""

    def __init__(self, progress: Progress, limits: Sequence[float], pid: int) -> None:
        self._progress = progress
        self._limits = limits
        self._pid = pid
        self.running = _NEVER_SEEN

    def is_late(self) -> bool:
        """Whether the process has been busy with one and the same thing for too long."""
        running = self._progress.running()
        if running != self.running:
            self.running = running
            self._clock = ActiveClock(self._pid)
            return False
        task, reward = split_running(self.running)
        if task < 0:
            return self._clock.wall() > INTAKE_DEADLINE_S
        limit = self._limits[reward]
        return self._clock.elapsed() > limit or self._clock.wall() > WALL_FACTOR * limit


def _parse(lines: bytes) -> list[Any]:
    parsed: list[Any] = json.loads(b"[" + lines.rstrip(b",") + b"]")
    return parsed
