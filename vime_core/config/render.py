"""Prints a configuration as YAML, with where each value came from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import yaml
from omegaconf import MISSING

if TYPE_CHECKING:
    from collections.abc import Iterator

COMMENT_COLUMN = 48
INDENT = "  "


def render(tree: Mapping[str, Any], provenance: Mapping[str, str] | None = None) -> str:
    """A tree as YAML.

    Args:
        tree: plain values.
        provenance: full key -> where the value came from, for a comment behind it; None leaves comments out.
    """
    return "\n".join(_lines(tree, provenance, "", "")) + "\n"


def _lines(tree: Mapping[str, Any], provenance: Mapping[str, str] | None, path: str, indent: str) -> Iterator[str]:
    for name, value in tree.items():
        key = f"{path}.{name}" if path else name
        if isinstance(value, Mapping) and value:
            yield f"{indent}{name}:"
            yield from _lines(value, provenance, key, indent + INDENT)
            continue
        line = f"{indent}{_scalar(name)}: {_scalar(value)}"
        comment = _comment(key, value, provenance)
        yield f"{line:<{COMMENT_COLUMN}}{comment}" if comment else line


def _comment(key: str, value: Any, provenance: Mapping[str, str] | None) -> str:
    if value == MISSING:
        return f"  # required: {key}=<value>"
    return f"  # {provenance[key]}" if provenance and key in provenance else ""


def _scalar(value: Any) -> str:
    text: str = yaml.safe_dump(value, default_flow_style=True, width=float("inf"), allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...")
