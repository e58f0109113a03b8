"""Checks values against the limits that `schema.option` declares, and finds what is missing."""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, ListConfig, OmegaConf

from vime_core.config.sources import where_from
from vime_core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


def check_limits(config: DictConfig, provenance: Mapping[str, str]) -> None:
    """Check every value of a typed tree: numbers are finite and within limits; missing ones and null are left out.

    Args:
        config: typed tree.
        provenance: full key -> where its value came from, for messages.

    Raises:
        ConfigError: names key, value and what is allowed.
    """
    for key, value, limits in _values(config, ""):
        fault = _fault(value, limits)
        if fault:
            raise ConfigError(f"{key}={value}{where_from(provenance, key)}: must be {fault}")


def missing_keys(config: DictConfig) -> list[str]:
    """Full keys of required values that nothing sets."""
    return sorted(OmegaConf.missing_keys(config))


def check_complete(config: DictConfig) -> None:
    """Check that every required value is there.

    Raises:
        ConfigError: names the keys and how to set them.
    """
    missing = missing_keys(config)
    if missing:
        example = " ".join(f"{key}=<value>" for key in missing)
        raise ConfigError(f"required but not set: {', '.join(missing)}; add {example} to the command line")


def _values(node: DictConfig, path: str) -> Iterator[tuple[str, Any, Mapping[str, Any]]]:
    config = OmegaConf.get_type(node)
    metadata = {field.name: field.metadata for field in fields(config)} if is_dataclass(config) else {}
    for name in node:
        if OmegaConf.is_missing(node, name):
            continue
        key = f"{path}.{name!s}" if path else str(name)
        value = node[name]
        if isinstance(value, DictConfig):
            yield from _values(value, key)
        elif value is not None:
            yield key, value, metadata.get(str(name), {})


def _is_finite(value: Any) -> bool:
    if isinstance(value, ListConfig):
        return all(map(_is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def _fault(value: Any, limits: Mapping[str, Any]) -> str | None:
    if not _is_finite(value):
        return "finite"
    choices = limits.get("choices", ())
    if choices and value not in choices:
        close = get_close_matches(str(value), choices, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        return f"{'one of ' if len(choices) > 1 else ''}{', '.join(choices)}{hint}"
    low, above, high, below = (limits.get(name) for name in ("low", "above", "high", "below"))
    bounds = [
        (low, "at least", lambda bound: value >= bound),
        (above, "more than", lambda bound: value > bound),
        (high, "at most", lambda bound: value <= bound),
        (below, "less than", lambda bound: value < bound),
    ]
    given = [(bound, words, holds) for bound, words, holds in bounds if bound is not None]
    if not all(holds(bound) for bound, _, holds in given):
        return " and ".join(f"{words} {bound:g}" for bound, words, _ in given)
    return None
