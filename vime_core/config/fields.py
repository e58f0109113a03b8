"""What a settings class says about its fields: name, type, default, and the docstring below each."""

from __future__ import annotations

import ast
import inspect
import textwrap
import typing
from dataclasses import MISSING as NO_DEFAULT
from dataclasses import dataclass, fields, is_dataclass
from itertools import pairwise
from typing import Any

from omegaconf import MISSING

from vime_core.config.typed import describe_type


@dataclass(frozen=True, slots=True)
class SettingField:
    """One setting, as people read it."""

    name: str
    type: str
    """As in messages: `whole number`, `text`, ..."""
    default: Any
    """Plain value; None also where there is none, see `required`."""
    required: bool
    """Whether there is no default."""
    limits: str
    """What the value must be, e.g. `at least 1`; empty when anything of the type will do."""
    doc: str
    """The docstring below the field, on one line; empty when there is none."""


def setting_fields(config: type) -> list[SettingField]:
    """All fields of a settings class, those of its bases first."""
    docs, hints = field_docs(config), typing.get_type_hints(config)
    found = []
    for item in fields(config):
        default = item.default if item.default_factory is NO_DEFAULT else item.default_factory()
        required = default is NO_DEFAULT or default == MISSING
        found.append(
            SettingField(
                name=item.name,
                type=describe_type(hints[item.name]),
                default=None if required else default,
                required=required,
                limits=describe_limits(item.metadata),
                doc=" ".join(docs.get(item.name, "").split()),
            )
        )
    return found


def field_docs(config: type) -> dict[str, str]:
    """The docstring below each field of a dataclass, those of its bases included."""
    found: dict[str, str] = {}
    for owner in reversed(config.__mro__):
        if is_dataclass(owner):
            found |= _own_field_docs(owner)
    return found


def describe_limits(metadata: typing.Mapping[str, Any]) -> str:
    """The limits that `schema.option` declares, in words."""
    if metadata.get("choices"):
        return "one of " + ", ".join(metadata["choices"])
    words = {"low": "at least", "above": "more than", "high": "at most", "below": "less than"}
    return ", ".join(f"{words[name]} {metadata[name]:g}" for name in words if metadata.get(name) is not None)


def _own_field_docs(config: type) -> dict[str, str]:
    try:
        source = inspect.getsource(config)
    except (OSError, TypeError):  # made without a source file
        return {}
    [owner] = [node for node in ast.parse(textwrap.dedent(source)).body if isinstance(node, ast.ClassDef)]
    found = {}
    for field, text in pairwise(owner.body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            content = text.value.value if isinstance(text.value, ast.Constant) else None
            if isinstance(content, str):
                found[field.target.id] = inspect.cleandoc(content)
    return found
