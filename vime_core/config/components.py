"""Which components a merged tree chooses, and what `auto` stands for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vime_core.config.slots import AUTO_CONFIGS, SEVERAL, SINGLE, default_settings
from vime_core.config.sources import DEFAULT, chosen_in, component_defaults, no_section, origin_of, where_from
from vime_core.errors import ConfigError
from vime_core.plugins.auto import choose_accelerator, choose_sync, has_engines
from vime_core.plugins.kinds import AUTO, entry_type_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from vime_core.config.merge import Merged
    from vime_core.plugins.manager import Plugins
    from vime_core.plugins.registration import Registered

CHOSEN_AUTOMATICALLY = "chosen automatically"


@dataclass(frozen=True, slots=True)
class Components:
    """The chosen components of a run."""

    chosen: Mapping[str, Registered]
    """Full key of the settings -> the entry; without those that stay `auto` until the model is read."""
    configs: Mapping[str, type]
    """Full key of the settings -> their dataclass; for all components."""


def choose_components(
    plugins: Plugins, merged: Merged, provenance: dict[str, str], *, require_available: bool
) -> Components:
    """Find the entry of every component by the name in its settings; writes what `auto` stands for into the tree.

    Args:
        plugins: the components there are.
        merged: what Hydra made of files and overrides.
        provenance: full key -> where its value came from; gets what `auto` brings.
        require_available: whether each must be usable here.

    Raises:
        ConfigError: when a kind has no component, or settings are given for one that is not chosen.
        PluginError: when there is no such component, more than one, or when it is unavailable.
    """
    chosen: dict[str, Registered] = {}
    for group in SINGLE:
        if group in merged.tree and not isinstance(merged.tree[group], dict):
            # The choice of a component, made on the command line, is told as the origin of what replaced it.
            told = {key: source.label for source in merged.sources for key in source.content if key == group}
            raise no_section(group, merged.tree[group], told)
        name = _name(plugins, group, merged.tree.get(group))
        if name != AUTO or group not in AUTO_CONFIGS:
            with chosen_in(provenance.get(f"{group}.name", "")):
                chosen[group] = plugins.find(group, name)
            _check_selected(merged, group, name, group, provenance)
    for group, section in SEVERAL.items():
        settings = merged.tree.get(section)
        for label, child in (settings if isinstance(settings, dict) else {}).items():
            entry_name = str(child.get("name", label) if isinstance(child, dict) else label)
            key = f"{section}.{label}"
            with chosen_in(origin_of(provenance, key)):
                chosen[key] = plugins.find(group, entry_name)
            _check_selected(merged, group, entry_name, key, provenance)
    if require_available:
        for registered in chosen.values():
            plugins.select(registered.entry.group, registered.entry.name)
    _choose_auto(plugins, merged.tree, chosen, provenance)
    configs = {key: registered.entry.config for key, registered in chosen.items()}
    configs |= {group: AUTO_CONFIGS[group] for group in SINGLE if group not in chosen}
    return Components(chosen, configs)


def _name(plugins: Plugins, group: str, settings: Any) -> str:
    name = settings.get("name") if isinstance(settings, dict) else None
    if isinstance(name, str):
        return name
    names = ", ".join(plugins.entries(group)) or "none installed"
    raise ConfigError(f"no {entry_type_of(group).kind} is chosen; choose one with {group}=<name> ({names})")


def _check_selected(merged: Merged, group: str, name: str, key: str, provenance: Mapping[str, str]) -> None:
    if f"{group}/{name}" in merged.configs:
        return
    if group in SEVERAL:
        origin = where_from(provenance, key)
        raise ConfigError(
            f"{key}{origin} is set, but {group} {name!r} is not chosen; choose it with {group}=[..., {name}]"
        )
    origin = where_from(provenance, f"{key}.name")
    raise ConfigError(
        f"{key}.name={name}{origin}: a component is chosen with {group}={name}, which brings its own defaults"
    )


def _choose_auto(
    plugins: Plugins, tree: dict[str, Any], chosen: dict[str, Registered], provenance: dict[str, str]
) -> None:
    choices: dict[str, Callable[[], Registered]] = {
        "accelerator": lambda: choose_accelerator(plugins),
        "sync": lambda: choose_sync(
            plugins,
            train=chosen["train"].entry.name,
            rollout=chosen["rollout"].entry.name,
            accelerator=chosen["accelerator"].entry.name,
            placement=str(tree.get("placement")),
            engines=has_engines(chosen["rollout"].entry),
        ),
    }
    for group, choose in choices.items():
        if group in chosen:
            continue
        chosen[group] = choose()
        # What the user set stays; defaults are the chosen component's own.
        entry = chosen[group].entry
        defaults = default_settings(entry)
        set_by_user = {
            name: value for name, value in tree[group].items() if provenance.get(f"{group}.{name}") != DEFAULT
        }
        tree[group] = {**set_by_user, "name": entry.name}
        provenance |= {
            f"{group}.{name}": component_defaults(group, entry.name) for name in defaults.keys() - set_by_user
        }
        provenance[f"{group}.name"] = CHOSEN_AUTOMATICALLY
