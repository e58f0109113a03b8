"""What a server's log says of its end."""

from __future__ import annotations

import re

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_PREFIX = re.compile(r"^(\([^)]*\)\s*)?((DEBUG|INFO|WARNING|ERROR|CRITICAL)\s+\S+\s+\S+\s+\[[^\]]*\]\s*)?")
_ERROR = re.compile(r"^[\w.]*(Error|Exception|Interrupt)\b: \S")
_REFERS_ELSEWHERE = re.compile(r"see (the )?(root cause|stack trace)|check the stack trace", re.IGNORECASE)


def cause_in(tail: str) -> str:
    """One line: the last exception that does not merely point at another, else the last line that says something.

    Args:
        tail: the end of the log.
    """
    lines = [_PREFIX.sub("", _COLOURS.sub("", line)).strip() for line in tail.splitlines()]
    told = [line for line in lines if line]
    causes = [line for line in told if _ERROR.match(line) and not _REFERS_ELSEWHERE.search(line)]
    return (causes or told or ["the log is empty"])[-1]
