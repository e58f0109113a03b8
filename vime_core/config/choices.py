"""What experiments and hardware profiles choose with their defaults lists, and what Hydra misreads in them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from vime_core.config.overrides import GROUPS, names_fault
from vime_core.config.slots import FILE_GROUPS
from vime_core.config.sources import first_files, read_text, read_yaml
from vime_core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

HEADER = "# @package _global_"
"""First line of every experiment and hardware profile: their keys are those of the run."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One item of a defaults list."""

    text: str
    """As it is written: `override /reward`; empty for the name of a file beside this one."""
    group: str
    names: Sequence[Any]


def choices(file: Path) -> Iterator[Choice]:
    """The items of a file's defaults list."""
    defaults = read_yaml(file).get("defaults")
    for item in defaults if isinstance(defaults, list) else []:
        for key, value in item.items() if isinstance(item, dict) else [str(item).rpartition("/")[::2]]:
            group = str(key).removeprefix("override ").strip(" /") or file.parent.name
            yield Choice(str(key), group, value if isinstance(value, list) else [value])


def chooses(file: Path, group: str, name: str) -> bool:
    """Whether the defaults list of a file chooses `name` of a group."""
    return any(choice.group == group and name in choice.names for choice in choices(file))


def included_files(files: Sequence[Path], folders: Sequence[Path]) -> list[Path]:
    """These experiments and hardware profiles, and those that their defaults lists choose in turn.

    Raises:
        ConfigError: for one without `HEADER`, which Hydra puts below a key `experiment`, and for a name that is
            written with `.yaml` or given twice.
    """
    found: list[Path] = []
    pending = list(files)
    while pending:
        file = pending.pop(0)
        if file in found:
            continue
        found.append(file)
        _check_header(file)
        for choice in choices(file):
            fault = names_fault(choice.names)
            if fault:
                raise ConfigError(f"{_place(file)}: {choice.text or 'defaults'}: {fault}")
            if choice.group in FILE_GROUPS:
                pending += first_files(folders, choice.group, choice.names)
    return found


def check_groups(files: Sequence[Path]) -> None:
    """Find the choice that Hydra failed at, when its group is to blame.

    Raises:
        ConfigError: names file and group.
    """
    for file in files:
        for choice in choices(file):
            if choice.text.startswith("override ") and choice.group not in GROUPS:
                close = get_close_matches(choice.group, GROUPS, n=1)
                known = f"did you mean /{close[0]}?" if close else f"there are {', '.join(GROUPS)}"
                raise ConfigError(f"{_place(file)}: '{choice.text}' names no group of components; {known}")
            if choice.text == f"override {choice.group}":
                raise ConfigError(f"{_place(file)}: write 'override /{choice.group}', with /, for '{choice.text}'")


def _check_header(file: Path) -> None:
    lines = read_text(file).splitlines()
    first = next((line for line in lines if line.strip()), "")
    if not re.fullmatch(r"\s*#+\s*@package\s+_global_\s*", first):
        raise ConfigError(f"{file}: its first line must be '{HEADER}', with nothing above it")


def _place(file: Path) -> str:
    return f"{file.parent.name}/{file.name}"
