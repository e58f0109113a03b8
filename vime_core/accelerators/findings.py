"""What a check of `vime doctor` found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warning", "problem"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the table."""

    check: str
    status: Status
    detail: str
    remedy: str = ""
    """What to do about it; empty when it is ok."""
