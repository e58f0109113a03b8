"""Runs Hydra: defaults list, files, overrides. Its errors become one line each."""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException, MissingConfigException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from vime_core.config.overrides import SEARCH_PATH, for_hydra, given_value
from vime_core.config.saved import SAVED
from vime_core.config.slots import SEVERAL, SINGLE
from vime_core.config.sources import (
    Source,
    chooses,
    chosen_files,
    chosen_in,
    config_source,
    leaves,
    override_source,
    yaml_fault,
)
from vime_core.config.store import offered
from vime_core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hydra.core.override_parser.types import Override

    from vime_core.config.saved import SavedConfig
    from vime_core.plugins.manager import Plugins


@dataclass(frozen=True, slots=True)
class Merged:
    """What Hydra made of files and overrides; no key or type is checked yet."""

    tree: dict[str, Any]
    """Plain values; interpolations are not resolved."""
    sources: list[Source]
    """What was merged, in order."""
    configs: frozenset[str]
    """Path of every config that was merged, e.g. `algorithm/grpo`."""


def merge(
    plugins: Plugins,
    folder: Path,
    name: str,
    overrides: Sequence[Override],
    extra_folder: Path | None,
    saved: SavedConfig | None = None,
) -> Merged:
    """Merge the config `name` of a folder with what it includes and what the command line says.

    Args:
        plugins: the components there are.
        folder: where the config is.
        name: file name without `.yaml`.
        overrides: checked by `parse_overrides`.
        extra_folder: further groups of files, e.g. the user's own experiments.
        saved: a whole configuration to start from instead of `name`; the folder has the groups of files only.

    Raises:
        ConfigError: for a file or a combination that cannot be merged.
        PluginError: for a component that does not exist.
    """
    lines = [*for_hydra(overrides), *_search_path(plugins, overrides, extra_folder)]
    files = chosen_files(overrides, [folder, *([extra_folder] if extra_folder else []), *plugins.conf_folders])
    errors = _one_line_errors(plugins, files)
    with offered(plugins), errors, initialize_config_dir(str(folder.resolve()), version_base="1.3"):
        if saved is not None:
            name = SAVED
            _offer(saved.node())
            _offer(saved.node([item.config_path for item in _defaults_list(name, lines)]))
        composed = compose(name, lines, return_hydra_config=True)
        merged = _defaults_list(name, lines)
        sources = [_source(item, _folders(composed), saved, plugins) for item in merged]
    content = cast("dict[str, Any]", OmegaConf.to_container(composed))
    tree = {key: value for key, value in content.items() if key != "hydra"}
    return Merged(tree, [*sources, override_source(overrides)], frozenset(item.config_path for item in merged))


def _search_path(plugins: Plugins, overrides: Sequence[Override], extra_folder: Path | None) -> list[str]:
    """Where files are looked for besides vime's own folder: what the user names comes before what plugins ship."""
    given = [str(place) for place in given_value(overrides, SEARCH_PATH) or ()]
    folders = [*([extra_folder.resolve()] if extra_folder is not None else []), *plugins.conf_folders]
    places = [*given, *(folder.as_uri() for folder in folders)]
    return [f"{SEARCH_PATH}={places!r}"] if places else []


def _offer(node: dict[str, Any]) -> None:
    ConfigStore.instance().store(name=SAVED, node=node, provider="vime-core")


def _defaults_list(name: str, lines: list[str]) -> list[Any]:
    """What Hydra merges, in order; its own settings aside."""
    defaults = GlobalHydra.instance().config_loader().compute_defaults_list(name, lines, RunMode.RUN).defaults
    return [item for item in defaults if item.config_path and not item.config_path.startswith("hydra/")]


def _source(item: Any, folders: Sequence[Path], saved: SavedConfig | None, plugins: Plugins) -> Source:
    if saved is not None and item.config_path == SAVED:
        node = ConfigStore.instance().load(f"{SAVED}.yaml").node
        content = cast("dict[str, Any]", OmegaConf.to_container(node))
        kept = dict(leaves({key: content[key] for key in content if key != "defaults"}))
        return Source(saved.label, kept, is_saved=True)
    return config_source(item.config_path, item.package or "", folders, plugins.conf_folders)


def _folders(composed: DictConfig) -> list[Path]:
    sources = composed.hydra.runtime.config_sources
    return [Path(source.path) for source in sources if source["schema"] == "file"]


@contextmanager
def _one_line_errors(plugins: Plugins, files: Sequence[Path]) -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=r"provider=.* is not available", category=UserWarning)
        try:
            yield
        except MissingConfigException as error:
            raise _missing_config(plugins, error, files) from error
        except yaml.YAMLError as error:
            raise ConfigError(yaml_fault(error, "a configuration file")) from error
        except (HydraException, OmegaConfBaseException, UserWarning, ValueError) as error:
            raise ConfigError(" ".join(line.strip() for line in str(error).splitlines()[:2])) from error


def _missing_config(plugins: Plugins, error: MissingConfigException, files: Sequence[Path]) -> ConfigError:
    path = error.missing_cfg_file or ""
    group, _, name = str(path).rpartition("/")
    places = (f"{file.parent.name}/{file.name}" for file in files if chooses(file, group, name))
    place = next(places, "")
    if group in (*SINGLE, *SEVERAL):
        with chosen_in(place):
            plugins.find(group, name)
    options = [str(option) for option in error.options or ()]
    close = get_close_matches(name, options, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    known = f"; there are {', '.join(options)}" if options else ""
    return ConfigError(f"unknown {group or 'config'} {name!r}{f' ({place})' if place else ''}{known}{hint}")
