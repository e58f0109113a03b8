"""Where each value of the composed configuration came from."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

from vime_core.config.slots import AUTO_CONFIGS, FILE_GROUPS, SEVERAL, SINGLE, settings_key
from vime_core.config.store import ROOT
from vime_core.errors import ConfigError, PluginError
from vime_core.plugins.blame import add_note
from vime_core.plugins.kinds import AUTO, entry_type_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from hydra.core.override_parser.types import Override

    from vime_core.plugins.discovery import PluginInfo

COMMAND_LINE = "command line"
DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Source:
    """One of the configs that were merged, in the order of merging."""

    label: str
    """What people call it."""
    content: Mapping[str, Any]
    """Full keys of leaves -> values."""
    is_saved: bool = False
    """Whether it is the whole configuration of an earlier run."""


def config_source(config_path: str, package: str, folders: Sequence[Path], owners: Mapping[Path, PluginInfo]) -> Source:
    """A config that Hydra merged: a file of the search path, or the defaults of a component.

    Args:
        config_path: `<group>/<name>`.
        package: key below which Hydra puts it; empty for the root.
        folders: the search path.
        owners: the plugins that ship some of these folders.
    """
    for folder in folders:
        file = folder / f"{config_path}.yaml"
        if file.is_file():
            content = read_yaml(file)
            content.pop("defaults", None)
            owner = f" of plugin {owners[folder]}" if folder in owners else ""
            return Source(f"{config_path}.yaml{owner}", dict(leaves(content, package)))
    node = ConfigStore.instance().load(f"{config_path}.yaml").node
    return Source(_defaults_label(config_path), dict(leaves(OmegaConf.to_container(node), package)))


def chosen_files(overrides: Sequence[Override], folders: Sequence[Path]) -> list[Path]:
    """The experiments and hardware profiles that the command line chooses; of two with one name the first folder's."""
    files: list[Path] = []
    for override in overrides:
        group, value = override.key_or_group, override.value()
        if group in FILE_GROUPS:
            files += first_files(folders, group, value if isinstance(value, list) else [value])
    return files


def first_files(folders: Sequence[Path], group: str, names: Sequence[Any]) -> list[Path]:
    """The file of each name of a group, in the first folder that has one; those that no folder has are left out."""
    files = ([folder / group / f"{name}.yaml" for folder in folders] for name in names)
    found = (next((file for file in places if file.is_file()), None) for places in files)
    return [file for file in found if file is not None]


def override_source(overrides: Sequence[Override]) -> Source:
    """What the command line sets."""
    content: dict[str, Any] = {}
    for override in overrides:
        group, value = override.key_or_group, override.value()
        if group in (*SINGLE, *SEVERAL):
            names = value if isinstance(value, list) else [value]
            content.update({f"{settings_key(group, str(name))}.name": name for name in names})
        elif group not in FILE_GROUPS and not override.is_delete():
            content.update(leaves(value, group))
    return Source(COMMAND_LINE, content)


def provenance(sources: Sequence[Source]) -> dict[str, str]:
    """Full key of each leaf -> label of the last source that set it."""
    found: dict[str, str] = {}
    for source in sources:
        for key in source.content:
            for above in _above(key):
                found.pop(above, None)
            found[key] = source.label
    return found


def where_from(provenance: Mapping[str, str], key: str) -> str:
    """For messages: ` (label)` as `origin_of` gives it; empty when nothing set the key."""
    label = origin_of(provenance, key)
    return f" ({label})" if label else ""


def origin_of(provenance: Mapping[str, str], key: str) -> str:
    """Label of what set a key, or else something below it; empty when nothing did."""
    below = (label for name, label in provenance.items() if name.startswith(f"{key}."))
    return provenance.get(key) or next(below, "")


@contextmanager
def chosen_in(place: str) -> Iterator[None]:
    """Let a PluginError about a chosen component name the file that chooses it; the command line needs no naming."""
    try:
        yield
    except PluginError as error:
        if place and place != COMMAND_LINE:
            add_note(error, f"chosen in {place}")
        raise


def leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Full key and value of everything that is no (filled) mapping."""
    if isinstance(value, dict) and value:
        for name, child in value.items():
            yield from leaves(child, f"{key}.{name}" if key else str(name))
    elif key:
        yield key, value


def _above(key: str) -> Iterator[str]:
    while "." in key:
        key = key.rpartition(".")[0]
        yield key


def component_defaults(group: str, name: str) -> str:
    """Label of a component's own defaults."""
    return f"{DEFAULT} of {entry_type_of(group).kind} {name}"


def read_yaml(file: Path) -> dict[str, Any]:
    """A YAML file with a mapping.

    Raises:
        ConfigError: names file and line.
    """
    try:
        content = yaml.safe_load(read_text(file))
    except yaml.YAMLError as error:
        raise ConfigError(yaml_fault(error, str(file))) from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"{file} must hold keys and values, not {type(content).__name__}")
    return content


def read_text(file: Path) -> str:
    """The text of a file.

    Raises:
        ConfigError: names the file.
    """
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8 text: {error.reason} at byte {error.start}") from error


def no_section(key: str, value: Any, provenance: Mapping[str, str]) -> ConfigError:
    """For a key that has keys below it and got a value, or nothing."""
    origin = where_from(provenance, key)
    if value is None:
        return ConfigError(f"{key}{origin} is empty: put keys below it, or leave it out")
    return ConfigError(f"{key}={value}{origin}: must be a section with keys below it")


def yaml_fault(error: yaml.YAMLError, file: str) -> str:
    """A syntax error in one line."""
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return f"{file} is not valid YAML: {str(error).splitlines()[0]}"
    name = mark.name if mark.name.endswith(".yaml") else file
    return f"{name} line {mark.line + 1} is not valid YAML: {getattr(error, 'problem', None)}"


def _defaults_label(config_path: str) -> str:
    group, _, name = config_path.partition("/")
    if config_path == ROOT or (group in AUTO_CONFIGS and name == AUTO):
        return DEFAULT
    return component_defaults(group, name) if group in (*SINGLE, *SEVERAL) else config_path
