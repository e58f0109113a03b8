"""What a server's log says of its end."""

from __future__ import annotations

import re

LINES = 2000
"""Lines at the end of a log that are looked at; each request that an engine's death breaks off leaves a traceback."""

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_PREFIX = re.compile(r"^(\([^)]*\)\s*)?((?P<level>[A-Z]+)\s+\S+\s+\S+\s+\[[^\]]*\]\s*)?")
_ERROR = re.compile(r"^[\w.]*(Error|Exception|Interrupt)\b: \S")
_REFERS_ELSEWHERE = re.compile(r"see (the )?(root cause|stack trace)|check the stack trace", re.IGNORECASE)
_NOISE = re.compile(r"^(nanobind:|- leaked |- \.\.\. skipped|See https://nanobind)")
"""Printed by some libraries at the end of every process."""


def cause_in(tail: str) -> str:
    """One line: the last exception that does not merely point at another, else the last line that says something.

    Args:
        tail: the end of the log.
    """
    told, errors, causes = ["the log is empty"], [], []
    for line in tail.splitlines():
        plain = _COLOURS.sub("", line)
        prefix = _PREFIX.match(plain)
        text = plain[prefix.end() :].strip() if prefix else plain.strip()
        if not text or _NOISE.match(text):
            continue
        told.append(text)
        # Warnings show exceptions that were dealt with.
        if _ERROR.match(text) and (prefix is None or prefix["level"] in (None, "ERROR", "CRITICAL")):
            errors.append(text)
            if not _REFERS_ELSEWHERE.search(text):
                causes.append(text)
    return (causes or errors or told)[-1]
