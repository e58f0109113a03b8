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

from vime_core.config.choices import check_groups, chooses, included_files
from vime_core.config.overrides import SEARCH_PATH, for_hydra, given_value
from vime_core.config.saved import SAVED
from vime_core.config.slots import SEVERAL, SINGLE
from vime_core.config.sources import (
    Source,
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


USER = "--config-dir"
"""Who provides the user's own files, as Hydra names it."""


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
        extra_folder: further groups of files, e.g. the user's own experiments; they come before all others.
        saved: a whole configuration to start from instead of `name`; the folder has the groups of files only.

    Raises:
        ConfigError: for a file or a combination that cannot be merged.
        PluginError: for a component that does not exist.
    """
    *above, folder = search_folders(folder, extra_folder)
    passed_over = [] if saved else [place / f"{name}.yaml" for place in above if (place / f"{name}.yaml").is_file()]
    if passed_over:
        raise ConfigError(f"{passed_over[0]} is not read: give it with --config, or rename it")
    given = [str(place) for place in given_value(overrides, SEARCH_PATH) or ()]
    below = [*given, *map(str, plugins.conf_folders)]
    lines = [*for_hydra(overrides), f"{SEARCH_PATH}={below!r}"]
    folders = [*above, folder, *(Path(place) for place in below if "://" not in place)]
    files = included_files(chosen_files(overrides, folders), folders)
    errors = _one_line_errors(plugins, files, folders)
    with offered(plugins), errors, initialize_config_dir(str(folder), version_base="1.3"):
        for place in above:
            _search_first(place)
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


def search_folders(folder: Path, extra_folder: Path | None) -> list[Path]:
    """Where files are looked for before plugins are loaded: what the user names comes first."""
    return list(dict.fromkeys(place.resolve() for place in (extra_folder, folder) if place is not None))


def _search_first(folder: Path) -> None:
    """Let Hydra look into a folder before that with the config it begins with."""
    # Hydra's setting of a search path appends to this one, and has it take effect.
    GlobalHydra.instance().config_loader().get_search_path().prepend(USER, str(folder))


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
def _one_line_errors(plugins: Plugins, files: Sequence[Path], folders: Sequence[Path]) -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=r"provider=.* is not available", category=UserWarning)
        try:
            yield
        except MissingConfigException as error:
            raise _missing_config(plugins, error, files, folders) from error
        except yaml.YAMLError as error:
            raise ConfigError(yaml_fault(error, "a configuration file")) from error
        except (HydraException, OmegaConfBaseException, UserWarning, ValueError) as error:
            check_groups(files)
            raise ConfigError(" ".join(line.strip() for line in str(error).splitlines()[:2])) from error


def _missing_config(
    plugins: Plugins, error: MissingConfigException, files: Sequence[Path], folders: Sequence[Path]
) -> ConfigError:
    path = error.missing_cfg_file or ""
    group, _, name = str(path).rpartition("/")
    places = (f"{file.parent.name}/{file.name}" for file in files if chooses(file, group, name))
    place = next(places, "")
    if group in (*SINGLE, *SEVERAL):
        with chosen_in(place):
            plugins.find(group, name)
    # Hydra tells no options for a name in a file's own defaults list.
    options = sorted({file.stem for folder in folders for file in (folder / group).glob("*.yaml")})
    close = get_close_matches(name, options, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    known = f"; there are {', '.join(options)}" if options else ""
    return ConfigError(f"unknown {group or 'config'} {name!r}{f' ({place})' if place else ''}{known}{hint}")
