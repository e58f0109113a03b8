"""What the user gives on the command line: `key=value`, `group=name`, sweeps."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException

from vime_core.config.slots import FILE_GROUPS, SEVERAL, SINGLE
from vime_core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

SEARCH_PATH = "hydra.searchpath"

GROUPS = (*SINGLE, *SEVERAL, *FILE_GROUPS)


def parse_overrides(overrides: Sequence[str]) -> list[Override]:
    """Parse overrides and check what they select.

    Raises:
        ConfigError: names the override, and how to write it.
    """
    parsed = [_parse(override) for override in overrides]
    for override in parsed:
        _check(override)
    return parsed


def for_hydra(overrides: Sequence[Override]) -> list[str]:
    """The overrides such that Hydra sets keys it does not know: the typed schema judges them afterwards.

    `experiment=null`, the default, is left out: Hydra takes no null there. So is the search path.
    """
    return [
        _forced(override)
        for override in overrides
        if not (override.key_or_group in FILE_GROUPS and override.value() is None)
        and override.key_or_group != SEARCH_PATH
    ]


def is_selection(override: Override) -> bool:
    """Whether the override chooses a component or a file."""
    return override.key_or_group in GROUPS


def expand_sweep(overrides: Sequence[str]) -> list[list[str]]:
    """The overrides of each job: every combination of the values that are listed with commas or as a sweep.

    Raises:
        ConfigError: for an override that cannot be parsed.
    """
    choices = []
    for override in map(_parse, overrides):
        if override.is_sweep_override():
            key = override.get_key_element()
            choices.append([f"{key}={value}" for value in override.sweep_string_iterator()])
        else:
            choices.append([str(override.input_line)])
    return [list(job) for job in itertools.product(*choices)]


def given_value(overrides: Sequence[Override], key: str) -> Any:
    """The value given for a key, or None; of several the last."""
    values = [override.value() for override in overrides if override.key_or_group == key]
    return values[-1] if values else None


def quoted(value: str) -> str:
    """A value that an override takes as it is, whatever characters it holds."""
    escaped = value.replace("\\'", "\\\\'").replace("'", "\\'")
    return f"'{escaped}'"


def _forced(override: Override) -> str:
    line = str(override.input_line)
    if is_selection(override) or override.is_hydra_override() or override.is_delete():
        return line
    return f"++{line.lstrip('+')}"


def _parse(override: str) -> Override:
    try:
        return OverridesParser.create().parse_override(override)
    except HydraException as error:
        raise ConfigError(
            f"cannot read override {override!r}: write key=value, and quote a value that holds spaces, commas, = or "
            "brackets, as in 'data.train=\"/data/a=b.parquet\"'"
        ) from error


def _check(override: Override) -> None:
    text, key = override.input_line, override.key_or_group
    if override.is_sweep_override():
        raise ConfigError(f"{text} lists several values: add --multirun for a run of each, or write [a,b] for a list")
    if override.is_hydra_override() and key != SEARCH_PATH:
        raise ConfigError(f"{text} has no effect here: run folders are set with run.root and run.name")
    if not is_selection(override):
        if not key or override.package is not None or "/" in key:
            raise ConfigError(f"cannot read override {text!r}: write key=value, e.g. train.steps=100")
        return
    if override.type != OverrideType.CHANGE:
        raise ConfigError(f"{text}: write {key}=<name>, without {str(text)[: str(text).index(key)]}")
    _check_choice(str(text), key, override.value())


def _check_choice(text: str, key: str, value: object) -> None:
    if key in FILE_GROUPS and value is None:
        return
    if key in SINGLE and not isinstance(value, str):
        raise ConfigError(f"{text}: {key} takes one name, as in {key}=<name>")
    names = value if isinstance(value, list) else [value]
    if not all(isinstance(name, str) for name in names):
        remedy = f"{key}=[] for none" if key in SEVERAL else f"{key}=null for none"
        raise ConfigError(f"{text}: {key} takes names, as in {key}=[a,b]; {remedy}")
    fault = names_fault(names)
    if fault:
        raise ConfigError(f"{text}: {fault}")


def names_fault(names: Sequence[object]) -> str | None:
    """What is wrong with the names that one group is given, or None."""
    for name in names:
        if names.count(name) > 1:
            return f"{name} is given twice; give each name once"
        if isinstance(name, str) and name.endswith(".yaml"):
            return f"a name is without .yaml: write {name.removesuffix('.yaml')}"
    return None
