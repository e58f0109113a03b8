"""Where each kind of component lives in the configuration tree."""

from __future__ import annotations

from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any

from omegaconf import MISSING, OmegaConf

from vime_core.config import schema
from vime_core.plugins.kinds import AUTO

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vime_core.plugins.entries import Entry

SINGLE = ("model", "data", "algorithm", "train", "rollout", "rollout_function", "sync", "accelerator")
"""Kinds of which a run has one: selected by this key, and their settings are under it."""

SEVERAL: Mapping[str, str] = {
    "reward": "rewards",
    "filter": "filters",
    "tracker": "trackers",
    "observer": "observers",
}
"""Kinds of which a run has any number: the key that selects them -> the key with their settings, by name."""

FILE_GROUPS = ("hardware", "experiment")
"""Groups of files in the configuration folder; any number of each can be chosen."""

AUTO_CONFIGS: Mapping[str, type] = {
    "model": schema.ModelConfig,
    "sync": schema.SyncConfig,
    "accelerator": schema.AcceleratorConfig,
}
"""Kinds that `auto` can stand for, with the settings that one can give before the choice is made."""

NAMED_SECTIONS = (*SEVERAL.values(), "evals")
"""Keys whose children have names of the user's or the component's choosing."""


def settings_key(group: str, name: str) -> str:
    """Full key of a component's settings."""
    return f"{SEVERAL[group]}.{name}" if group in SEVERAL else group


def default_settings(entry: Entry) -> dict[str, Any]:
    """The defaults of a component, with its name filled in; plain values."""
    return {**plain_defaults(entry.config), "name": entry.name}


def auto_settings(group: str) -> dict[str, Any]:
    """The defaults that hold whichever component `auto` turns out to be."""
    return {**plain_defaults(AUTO_CONFIGS[group]), "name": AUTO}


def root_settings() -> dict[str, Any]:
    """The defaults of everything that is no component."""
    return {key: value for key, value in plain_defaults(schema.Config).items() if value != MISSING}


def plain_defaults(config: type) -> dict[str, Any]:
    """The defaults of a dataclass as plain values; those without are `???`."""
    if not is_dataclass(config):
        raise TypeError(f"{config!r} is not a dataclass")
    content = OmegaConf.to_container(OmegaConf.structured(config))
    return {str(key): value for key, value in content.items()} if isinstance(content, dict) else {}
