"""Two processes of one program, each with a device of its own: the first prints a line that the second reads."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vime_core.plugins.interfaces import Accelerator

ROOT = Path(__file__).resolve().parents[1]
DEADLINE_S = 120.0
EQUAL = "equal"
"""What the second prints when it found what it should."""


def run_pair(
    program: str,
    roles: Mapping[str, int],
    accelerator: Accelerator,
    environment: Mapping[str, str],
    deadline_s: float = DEADLINE_S,
) -> str | None:
    """What went wrong, or None.

    Args:
        program: module that is run as `python -m program ROLE ACCELERATOR`.
        roles: two roles and the device of each; the first one's process is ended when the second has.
        accelerator: whose devices they are.
        environment: more variables for both.
        deadline_s: for the first one's line, and for the second.
    """

    def start(role: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", program, role, accelerator.name],
            cwd=ROOT,
            env=os.environ | environment | accelerator.child_environment([roles[role]], 1),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    giver, taker = roles
    out = start(giver)
    try:
        line = _first_line(out, deadline_s)
        if not line:
            return f"{giver}: {_last(out.communicate(timeout=deadline_s)[1])}"
        return _answer(start(taker), taker, line, deadline_s)
    finally:
        out.kill()
        out.communicate()


def _first_line(process: subprocess.Popen[str], deadline_s: float) -> str:
    """Empty when it ends before, or is killed because it says nothing in time."""
    late = threading.Timer(deadline_s, process.kill)
    late.start()
    try:
        return process.stdout.readline() if process.stdout else ""
    finally:
        late.cancel()


def _answer(process: subprocess.Popen[str], role: str, line: str, deadline_s: float) -> str | None:
    try:
        told, errors = process.communicate(line, timeout=deadline_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return f"{role}: no answer within {deadline_s:g} s"
    if process.returncode:
        return f"{role}: {_last(errors)}"
    return None if told.strip() == EQUAL else told.strip()


def _last(errors: str) -> str:
    return next((line for line in reversed(errors.splitlines()) if line.strip()), "no output")
