"""The form of a guard."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Site:
    """A line of Megatron-Core 0.16.1 that a guard is for."""

    module: str
    """Dotted name below `megatron.core`."""
    line: int
    text: str
    """Part of that line."""


@dataclass(frozen=True, slots=True)
class Guard:
    """One assumption of Megatron, and what is put in its place."""

    name: str
    reason: str
    sites: tuple[Site, ...]
    needed: Callable[[], bool]
    install: Callable[[], None]
    """Idempotent."""
