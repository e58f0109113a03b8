"""Rewards that behave and misbehave; imported by scoring processes."""

import ctypes
import itertools
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from vime_core.config.schema import RewardConfig
from vime_core.types import Verdict


@dataclass(kw_only=True)
class Settings(RewardConfig):
    name: str = "test"
    factor: float = 1.0
    file: str = ""


class Echo:
    """Says which sample it saw, and in which process."""

    def __init__(self, config):
        self.config = config

    def score(self, sample, prompt):
        score = self.config.factor * sample.index
        return Verdict(score, "correct", f"{prompt.id}/{sample.group_id}/{sample.index}", str(os.getpid()))


class Obey(Echo):
    """Does what the response says."""

    def score(self, sample, prompt):
        action, _, argument = sample.response_text.partition(" ")
        return getattr(self, action)(argument) or super().score(sample, prompt)

    def echo(self, argument):
        return None

    def spin(self, argument):
        while True:
            pass

    def spin_in_c(self, argument):
        """Holds the interpreter lock for ever, deaf to Python-level signal handlers."""
        sum(itertools.repeat(0))

    def sleep(self, argument):
        time.sleep(3600)

    def burn(self, argument):
        end = time.process_time() + float(argument)
        while time.process_time() < end:
            pass

    def exit(self, argument):
        os._exit(int(argument))

    def leave(self, argument):
        sys.exit(argument)

    def crash(self, argument):
        ctypes.string_at(0)

    def kill(self, argument):
        os.kill(os.getpid(), signal.SIGKILL)

    def fail(self, argument):
        raise ValueError(f"two\nlines of {argument}")

    def recurse(self, argument):
        return self.recurse(argument)

    def hoard(self, argument):
        hoard = []
        while True:
            hoard.append(bytearray(1 << 24))

    def answer(self, argument):
        return {"number": 7, "status": Verdict(1.0, argument), "nan": Verdict(float("nan"), "correct")}[argument]

    def answer_long(self, argument):
        return Verdict(1.0, "correct", None, "x" * int(argument))

    def silent(self, argument):
        return Verdict(1.0, argument, detail="said so")

    def chatter(self, argument):
        print("x" * 100_000)

    def spawn(self, argument):
        """A child in the same session, which holds no socket, and one that is forked and holds all."""
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
        forked = os.fork()
        if forked == 0:
            time.sleep(3600)
        with open(self.config.file, "a", encoding="utf-8") as file:
            file.write(f"{child.pid}\n{forked}\n")
        if argument == "exit":
            os._exit(0)
        self.spin("")

    def die_later(self, argument):
        """Ends between this task and the next."""
        if os.fork() == 0:
            while os.path.exists(self.config.file):
                time.sleep(0.01)
            os.kill(os.getppid(), signal.SIGKILL)
            os._exit(0)

    def pinned(self, argument):
        """Burns CPU time on one core that others want too."""
        os.sched_setaffinity(0, {int(self.config.file)})
        self.burn(argument) if argument else self.spin("")


class Unbuildable:
    def __init__(self, config):
        raise RuntimeError("no licence\nfound")


class DiesOnBuild:
    def __init__(self, config):
        os._exit(7)


class Sleepy:
    def __init__(self, config):
        time.sleep(3600)


class Picky:
    """Fails for odd samples."""

    def __init__(self, config):
        pass

    def score(self, sample, prompt):
        if sample.index % 2:
            raise KeyError("odd")
        return Verdict(0.25, "wrong", None, "even")


class Nap(Echo):
    """Sleeps so many seconds, like a call over a network."""

    def score(self, sample, prompt):
        time.sleep(float(sample.response_text))
        return Verdict(1.0, "correct")


class Meet(Echo):
    """Returns when as many calls as `factor` says are under way at once."""

    def score(self, sample, prompt):
        folder = Path(self.config.file)
        (folder / str(os.getpid())).touch()
        while len(list(folder.iterdir())) < self.config.factor:
            time.sleep(0.01)
        return Verdict(1.0, "correct")
