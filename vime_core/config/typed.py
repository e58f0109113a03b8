"""Puts a plain tree into the typed schema; unknown keys and wrong types are told with where they came from."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Union

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from vime_core.config import schema
from vime_core.config.slots import NAMED_SECTIONS
from vime_core.config.sources import leaves, no_section, where_from
from vime_core.errors import ConfigError

TYPE_NAMES: Mapping[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    type(None): "null",
}


class TypedTree:
    """The schema of one run, filled from a plain tree.

    Args:
        components: full key of each chosen component's settings -> its dataclass.
        eval_names: names of the held-out data sets.
        provenance: full key -> where its value came from, for messages.
    """

    def __init__(self, components: Mapping[str, type], eval_names: list[str], provenance: Mapping[str, str]) -> None:
        self._provenance = provenance
        self._root: DictConfig = OmegaConf.structured(schema.Config)
        sections = {**components, **{f"evals.{name}": schema.EvalSetConfig for name in eval_names}}
        for key, config in sections.items():
            parent, _, name = key.rpartition(".")
            target = self._root[parent] if parent else self._root
            target[name] = OmegaConf.structured(config)

    def fill(self, tree: Mapping[str, Any]) -> DictConfig:
        """The typed configuration, interpolations resolved.

        Raises:
            ConfigError: for an unknown key, a value of a wrong type and an interpolation that leads nowhere.
        """
        self._fill(self._root, tree, "")
        self._resolve(self._root, "")
        return self._root

    def _fill(self, node: DictConfig, tree: Mapping[str, Any], path: str) -> None:
        for name, value in tree.items():
            key = f"{path}.{name}" if path else str(name)
            if name not in list(node.keys()):
                raise ConfigError(self._unknown(node, key))
            child = None if OmegaConf.is_missing(node, name) or OmegaConf.is_interpolation(node, name) else node[name]
            if isinstance(child, DictConfig) and (OmegaConf.get_type(child) is not dict or key in NAMED_SECTIONS):
                if not isinstance(value, Mapping):
                    raise no_section(key, value, self._provenance)
                self._fill(child, value, key)
            else:
                self._set(node, str(name), value, key)

    def _resolve(self, node: DictConfig, path: str) -> None:
        for name in map(str, node):
            key = f"{path}.{name}" if path else name
            try:
                if not OmegaConf.is_missing(node, name) and isinstance(node[name], DictConfig):
                    self._resolve(node[name], key)
                elif OmegaConf.is_interpolation(node, name):
                    node[name] = node[name]
            except OmegaConfBaseException as error:
                raise ConfigError(f"{key}{self._origin(key)}: {str(error).splitlines()[0]}") from error

    def _set(self, node: DictConfig, name: str, value: Any, key: str) -> None:
        try:
            node[name] = value
        except OmegaConfBaseException as error:
            config = OmegaConf.get_type(node)
            wanted = describe_type(typing.get_type_hints(config)[name])
            shown = "null" if value is None else value
            raise ConfigError(f"{key}={shown}{self._origin(key)}: must be {wanted}") from error

    def _origin(self, key: str) -> str:
        return where_from(self._provenance, key)

    def _unknown(self, node: DictConfig, key: str) -> str:
        path, _, name = key.rpartition(".")
        known = [full for full, _ in leaves(OmegaConf.to_container(self._root))]
        siblings = [f"{path}.{sibling!s}" if path else str(sibling) for sibling in node]
        namesakes = [full for full in known if full.rpartition(".")[2] == name]
        close = [
            *get_close_matches(key, siblings, n=1, cutoff=0.8),
            *namesakes[:1],
            *get_close_matches(key, known, n=1, cutoff=0.8),
        ]
        if close:
            return f"unknown key {key}{self._origin(key)}; did you mean {close[0]}?"
        [nearest] = get_close_matches(key, (path and siblings) or known, n=1, cutoff=0)
        return f"unknown key {key}{self._origin(key)}; the closest is {nearest}; 'vime config' prints all keys"


def describe_type(annotation: Any) -> str:
    """A type for people, e.g. `a whole number or null`."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (Union, types.UnionType):
        return " or ".join(describe_type(argument) for argument in arguments)
    if origin is list:
        return f"a list, each {describe_type(arguments[0])}"
    if origin is dict:
        return f"a mapping, each value {describe_type(arguments[1])}"
    return TYPE_NAMES.get(annotation, getattr(annotation, "__name__", str(annotation)))
