"""A saved configuration as one that Hydra composes, so that its components can be chosen anew."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from vime_core.config.slots import FILE_GROUPS, SEVERAL, SINGLE
from vime_core.config.sources import read_yaml
from vime_core.config.store import ROOT
from vime_core.plugins.kinds import AUTO, config_base, entry_type_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

SAVED = "saved_configuration"
"""Name under which it is offered to Hydra."""

SYNC_FITS = ("train", "rollout", "accelerator")
"""Kinds that a sync strategy must fit: when one is chosen anew, so is the strategy."""


@dataclass(frozen=True, slots=True)
class SavedConfig:
    """A whole tree with every component's name and settings in it, e.g. a run's `config.yaml`."""

    label: str
    """What people call it."""
    tree: Mapping[str, Any]

    @classmethod
    def read(cls, file: Path) -> SavedConfig | None:
        """None for a file that says itself, with a list of defaults, what it is made from.

        Raises:
            ConfigError: when it cannot be read.
        """
        tree = read_yaml(file)
        return None if "defaults" in tree else cls(file.name, tree)

    def node(self, merged: Iterable[str] | None = None) -> dict[str, Any]:
        """What Hydra composes: a defaults list that chooses the saved components, and their settings.

        A component that is chosen anew has its own defaults, under those saved settings that all of its kind have; one
        that is chosen as it was keeps all of them.

        Args:
            merged: path of every config that is merged, `<group>/<name>`; as saved when None.
        """
        names = self._names()
        chosen = names if merged is None else _by_group(merged, names)
        changed = {group for group in SINGLE if chosen[group] != names[group]}
        if changed & {*SYNC_FITS}:
            changed.add("sync")
            names["sync"] = [AUTO]
        body = dict(self.tree)
        for group in changed:
            body[group] = _common(group, body.get(group))
        for group, section in SEVERAL.items():
            body[section] = {
                label: settings
                for label, settings in _mapping(body.get(section)).items()
                if _name(settings, label) in chosen[group]
            }
        single = [{group: names[group][0] if names[group] else None} for group in SINGLE]
        several = [{group: names[group]} for group in SEVERAL]
        files = [{group: None} for group in FILE_GROUPS]
        return {"defaults": [ROOT, *single, *several, "_self_", *files], **body}

    def _names(self) -> dict[str, list[str]]:
        """Group -> the entries that are chosen."""
        single = {group: _name(self.tree.get(group), None) for group in SINGLE}
        several = {
            group: {_name(settings, label) for label, settings in _mapping(self.tree.get(section)).items()}
            for group, section in SEVERAL.items()
        }
        return {group: [name] if name else [] for group, name in single.items()} | {
            group: sorted(name for name in found if name) for group, found in several.items()
        }


def _by_group(merged: Iterable[str], groups: Iterable[str]) -> dict[str, list[str]]:
    paths = [path.rpartition("/") for path in merged]
    return {group: [name for above, _, name in paths if above == group] for group in groups}


def _common(group: str, settings: Any) -> dict[str, Any]:
    """The settings that every component of a kind has, its name aside."""
    known = {field.name for field in fields(config_base(entry_type_of(group)))} - {"name"}
    return {key: value for key, value in _mapping(settings).items() if key in known}


def _name(settings: Any, label: str | None) -> str | None:
    name = _mapping(settings).get("name", label)
    return name if isinstance(name, str) else None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
