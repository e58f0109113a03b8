"""From overrides to the typed configuration of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from omegaconf import OmegaConf

from vime_core.config.components import choose_components
from vime_core.config.composed import ComposedConfig
from vime_core.config.limits import check_limits, missing_keys
from vime_core.config.location import conf_folder
from vime_core.config.merge import Merged, merge, search_folders
from vime_core.config.overrides import given_value, parse_overrides
from vime_core.config.saved import SavedConfig
from vime_core.config.sources import DEFAULT, chosen_files, leaves, provenance, read_yaml
from vime_core.config.typed import TypedTree
from vime_core.config.unused import check_unused
from vime_core.config.validate import check_rollout, check_settings, check_sync
from vime_core.errors import ConfigError
from vime_core.plugins.auto import has_engines
from vime_core.plugins.manager import load_plugins

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from hydra.core.override_parser.types import Override
    from omegaconf import DictConfig

    from vime_core.config.schema import Config
    from vime_core.plugins.manager import Plugins


def compose(
    overrides: Sequence[str] = (),
    *,
    config_file: Path | None = None,
    config_folder: Path | None = None,
    require_available: bool = True,
) -> ComposedConfig:
    """Compose the configuration of a run from vime's defaults, files, and overrides.

    Args:
        overrides: `key=value` and `group=name`, as on the command line.
        config_file: a saved configuration to start from instead of the defaults. A component that is chosen anew
            has its own defaults, under those saved settings that every component of its kind has.
        config_folder: a folder with further experiments.
        require_available: whether every chosen component must be usable here.

    Raises:
        ConfigError: for anything wrong with keys, values and files.
        PluginError: for a component that does not exist, failed to load, is ambiguous or unavailable.
    """
    parsed = parse_overrides(overrides)
    _check_paths(config_file, config_folder)
    folder, name = (config_file.parent, config_file.stem) if config_file else (conf_folder(), "config")
    saved = SavedConfig.read(config_file) if config_file else None
    block = _blocked(parsed, folder, name, config_folder)
    plugins = load_plugins(block)
    merged = merge(plugins, conf_folder() if saved else folder, name, parsed, config_folder, saved)
    composed = _typed(plugins, merged, overrides, require_available=require_available)
    _check_blocked(composed, block)
    if composed.typed.plugins.strict:
        plugins.check_strict()
    return composed


def engines_only(composed: ComposedConfig, overrides: Sequence[str] = ()) -> ComposedConfig:
    """The configuration of a run's engines alone: nothing is trained, and no prompts of `data` are read.

    Args:
        composed: of the run; `data` may be incomplete.
        overrides: what else is different.

    Raises:
        ConfigError: for anything wrong with `overrides`, and when the run has no engines.
        PluginError: for a component that cannot be used here.
    """
    rollout = composed.components["rollout"].entry
    if not has_engines(rollout):
        raise ConfigError(
            f"rollout={rollout.name} has no engines that could answer; choose one that has, as in rollout=vllm"
        )
    changes = ["train=none", "train.world_size=1", *overrides]
    saved = SavedConfig("the run's configuration", composed.tree)
    merged = merge(composed.plugins, conf_folder(), "", parse_overrides(changes), None, saved)
    return _typed(composed.plugins, merged, changes, require_available=True, reads_data=False)


def _typed(
    plugins: Plugins, merged: Merged, overrides: Sequence[str], *, require_available: bool, reads_data: bool = True
) -> ComposedConfig:
    origins = provenance(merged.sources)
    placement = TypedTree({}, [], origins).fill({"placement": merged.tree.get("placement")})
    check_limits(placement, origins)
    components = choose_components(plugins, merged, origins, require_available=require_available)
    evals = merged.tree.get("evals")
    typed = TypedTree(components.configs, [*evals] if isinstance(evals, dict) else [], origins).fill(merged.tree)
    check_limits(typed, origins)
    if not (reads_data and has_engines(components.chosen["rollout"].entry)):
        origins |= _leave_out_data(typed)
    check_unused(typed, components.chosen, origins, merged.sources)
    check_settings(cast("Config", typed), origins)
    check_rollout(cast("Config", typed), components.chosen, origins)
    check_sync(cast("Config", typed), components.chosen)
    keys = [key for key, _ in leaves(OmegaConf.to_container(typed))]
    told = {key: origins.get(key, DEFAULT) for key in keys}
    return ComposedConfig(typed, plugins, components.chosen, told, tuple(overrides))


def _leave_out_data(typed: DictConfig) -> dict[str, str]:
    """What is required of `data` and not set is left empty: nobody reads it. Recorded rollouts bring their prompts.

    Returns:
        Provenance of the keys that were left empty.
    """
    keys = [key for key in missing_keys(typed) if key.startswith("data.")]
    texts = [key for key in keys if OmegaConf.get_type(typed.data, key.removeprefix("data.")) is str]
    for key in texts:
        OmegaConf.update(typed, key, "")
    return dict.fromkeys(texts, "not read")


def _check_paths(config_file: Path | None, config_folder: Path | None) -> None:
    if config_file is not None and not config_file.exists():
        raise ConfigError(f"{config_file} does not exist; give the config.yaml of a run folder")
    if config_file is not None and not (config_file.is_file() and config_file.suffix == ".yaml"):
        raise ConfigError(f"{config_file} is no YAML file; give the config.yaml of a run folder")
    if config_folder is not None and not config_folder.is_dir():
        raise ConfigError(f"{config_folder} is no folder; give one with experiment/<name>.yaml in it")


def _blocked(parsed: Sequence[Override], folder: Path, name: str, config_folder: Path | None) -> list[str]:
    """`plugins.block`, read before anything is composed: blocked plugins must not be imported."""
    given = given_value(parsed, "plugins.block")
    if given is None:
        for file in _chosen_files(parsed, folder, name, config_folder):
            section = read_yaml(file).get("plugins")
            given = section.get("block", given) if isinstance(section, dict) else given
    return [str(item) for item in given] if isinstance(given, list) else []


def _chosen_files(parsed: Sequence[Override], folder: Path, name: str, config_folder: Path | None) -> list[Path]:
    main = folder / f"{name}.yaml"
    chosen = chosen_files(parsed, search_folders(folder, config_folder))
    return [*([main] if main.is_file() else []), *chosen]


def _check_blocked(composed: ComposedConfig, block: Sequence[str]) -> None:
    late = sorted(set(composed.typed.plugins.block) - set(block))
    if late:
        raise ConfigError(
            f"plugins.block=[{', '.join(late)}] ({composed.provenance['plugins.block']}) comes after plugins are "
            "imported; set it on the command line or in the experiment itself"
        )
