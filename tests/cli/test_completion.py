"""`vime completion`: what could come next, and a real bash that is typed into."""

import io
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from vime_core.cli import main
from vime_core.cli.app import COMMANDS
from vime_core.cli.candidates import TAKE_SETTINGS, candidates
from vime_core.testing.components import OVERRIDES

CHOSEN = " ".join(OVERRIDES)
TYPED_DEADLINE_S = 120


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("vime tr", ["train"]),
        ("vime new re", ["reward"]),
        ("vime plugins ", ["check", "list", "show"]),
        ("vime plugins show acm", ["acme"]),
        ("vime config --val", ["--validate"]),
        ("vime train --multi", ["--multirun"]),
        ("vime train algor", ["algorithm="]),
        (f"vime train {CHOSEN} algor", ["algorithm.", "algorithm="]),
        ("vime train algorithm=", ["algorithm=acme"]),
        ("vime train sync=", ["sync=acme", "sync=auto", "sync=none"]),
        ("vime train hardware=cp", ["hardware=cpu"]),
        ("vime train filter=[acme,ac", ["filter=[acme,acme"]),
        (f"vime train {CHOSEN} algorithm.cl", ["algorithm.clip_ratio="]),
        (f"vime config {CHOSEN} rewards.", ["rewards.acme."]),
        (f"vime train {CHOSEN} ++train.dtype=", ["++train.dtype=bfloat16", "++train.dtype=float32"]),
        (f"vime train {CHOSEN} run.save_rollouts=t", ["run.save_rollouts=true"]),
        (f"vime train {CHOSEN} filter=[acme] filters.acme.e", ["filters.acme.every="]),
        (f"vime train {CHOSEN} model.path=/et", []),
        (f"vime train {CHOSEN} train.steps=", []),
        (f"vime train {CHOSEN} nosuch.", []),
        ("vime nosuch a", []),
        ("vime report ou", []),
    ],
)
def test_what_could_come_next(site, line, expected):
    assert candidates(line) == expected


def test_without_a_command_there_are_all(site):
    assert candidates("vime ") == candidates("vime") == sorted(COMMANDS)


def test_a_mistake_in_what_was_typed_before_leaves_the_defaults(capsys):
    assert "train.steps=" in candidates("vime train algorithm=nosuch train.st")


def test_experiments_that_a_plugin_ships_are_among_them(site):
    folder = site.folder / "acme" / "conf" / "experiment"
    folder.mkdir(parents=True)
    (folder / "acme_quick.yaml").write_text("# @package _global_\n")
    assert candidates("vime train experiment=ac") == ["experiment=acme_quick"]


def test_an_unknown_shell_is_exit_2(capsys):
    assert main(["completion", "tcsh"]) == 2
    assert "invalid choice: 'tcsh'" in capsys.readouterr().err


COMMANDS_OF = {
    "bash": (["bash", "--noprofile", "--norc", "-i"], 'eval "$(vime completion bash)"'),
    "zsh": (["zsh", "-f", "-i"], 'autoload -U compinit; compinit -u -D; eval "$(vime completion zsh)"'),
    "fish": (["fish", "--no-config", "-i"], "vime completion fish | source"),
}
"""Shell -> (how it starts, what the user types first)"""

ON_THE_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execvp(sys.argv[1], sys.argv[1:])"
)
"""Makes the terminal that of the process, as an interactive shell expects it."""

SHELLS = [name for name in COMMANDS_OF if name == "bash" or shutil.which(name)]


class Shell:
    """An interactive shell on a terminal of its own."""

    def __init__(self, name: str, home: Path) -> None:
        self._terminal, theirs = pty.openpty()
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        own = {"PATH": path, "PS1": "ready> ", "TERM": "dumb", "COLUMNS": "200", "HOME": str(home)}
        self._process = subprocess.Popen(
            [sys.executable, "-c", ON_THE_TERMINAL, *COMMANDS_OF[name][0]],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, **own},
            start_new_session=True,
        )
        os.close(theirs)

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def expect(self, text: str) -> None:
        """Wait until the terminal shows it; bells and colours aside."""
        seen, deadline = "", time.monotonic() + TYPED_DEADLINE_S
        while text not in re.sub(r"\x07|\x1b\[[0-9;?]*[a-zA-Z]|\x1b[()]B|\x08", "", seen):
            readable, _, _ = select.select([self._terminal], [], [], max(deadline - time.monotonic(), 0))
            assert readable, f"{text!r} did not come; there was {seen!r}"
            seen += os.read(self._terminal, 4096).decode(errors="replace")

    def close(self) -> None:
        self._process.kill()
        self._process.wait(30)
        os.close(self._terminal)


@pytest.fixture(params=SHELLS)
def shell(request, tmp_path):
    shell = Shell(request.param, tmp_path)
    try:
        shell.type(f"{COMMANDS_OF[request.param][1]}; echo rea''dy\n")
        shell.expect("ready\r")
        yield shell
    finally:
        shell.close()


def test_a_shell_completes_what_is_typed(shell):
    shell.type("vime tra\t")
    shell.expect("vime train ")
    shell.type("algor\t")
    shell.expect("algorithm")
    shell.type("=gr\t")
    shell.expect("=grpo ")
    shell.type("algorithm.clip_ratio_h\t")
    shell.expect("algorithm.clip_ratio_high=")


def test_every_command_that_takes_settings_completes_them():
    """They are those whose help names `key=value`."""
    for command in COMMANDS:
        told = io.StringIO()
        with redirect_stdout(told), pytest.raises(SystemExit):
            main([command, "--help"])
        assert ("[key=value ...]" in told.getvalue()) == (command in TAKE_SETTINGS), command
