"""Settings that have no effect under others: a run that ignores what its user set would mislead."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from vime_core.config.slots import plain_defaults
from vime_core.config.sources import where_from
from vime_core.errors import ConfigError
from vime_core.plugins.auto import has_engines
from vime_core.plugins.entries import TrainBackendEntry

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from vime_core.config.sources import Source
    from vime_core.plugins.registration import Registered

OF_TRAINING = (
    *("lr", "lr_schedule", "lr_warmup_steps", "lr_min", "weight_decay"),
    *("adam_beta1", "adam_beta2", "adam_eps", "clip_grad"),
)
"""Keys of `train` without effect under a training backend that does not train."""

OF_ENGINES = ("num_engines", "tensor_parallel_size", "threads", "max_oversampling", "seed_samples")
"""Keys of `rollout` without effect under a rollout backend without engines."""

SAVED_LEVEL = -2
DEFAULT_LEVEL = -1


def check_unused(
    config: DictConfig,
    components: Mapping[str, Registered],
    provenance: Mapping[str, str],
    sources: Sequence[Source],
) -> None:
    """Check that everything that was set has an effect.

    What was set before the setting that takes its effect away is fine: `experiment=x train=none` need not take back
    the learning rate of the experiment. So is what a saved configuration says.

    Args:
        config: typed tree.
        components: full key of the settings -> the chosen entry.
        provenance: full key -> where its value came from.
        sources: what was merged, in order.

    Raises:
        ConfigError: names both settings.
    """
    levels = {source.label: SAVED_LEVEL if source.is_saved else number for number, source in enumerate(sources)}

    def level(key: str) -> int:
        return levels.get(provenance.get(key, ""), DEFAULT_LEVEL)

    for key, mode in (*_declared(config, ""), *_of_components(config, components)):
        value = OmegaConf.select(config, key)
        if value != _default(config, key) and level(key) >= level(mode):
            shown = mode.removesuffix(".name")
            raise ConfigError(
                f"{key}={value}{where_from(provenance, key)} is not used by {shown}={OmegaConf.select(config, mode)}; "
                f"leave it out, or set {shown} to something else"
            )


def _declared(node: DictConfig, path: str) -> Iterator[tuple[str, str]]:
    """(key, key of the setting under which it has no effect), where `schema.option` declares so."""
    config = OmegaConf.get_type(node)
    metadata = {field.name: field.metadata for field in fields(config)} if is_dataclass(config) else {}
    for name in map(str, node):
        if OmegaConf.is_missing(node, name):
            continue
        key = f"{path}.{name}" if path else name
        if isinstance(node[name], DictConfig):
            yield from _declared(node[name], key)
        rule = metadata[name].get("unused_if") if name in metadata else None
        if rule is not None and node[rule[0]] == rule[1]:
            yield key, f"{path}.{rule[0]}"


def _of_components(config: DictConfig, components: Mapping[str, Registered]) -> Iterator[tuple[str, str]]:
    train, rollout = components["train"].entry, components["rollout"].entry
    if isinstance(train, TrainBackendEntry) and not train.trains:
        yield from ((f"train.{name}", "train.name") for name in OF_TRAINING)
    if not has_engines(rollout):
        yield from ((f"rollout.{name}", "rollout.name") for name in OF_ENGINES)


def _default(config: DictConfig, key: str) -> Any:
    section, _, name = key.rpartition(".")
    settings = OmegaConf.get_type(OmegaConf.select(config, section))
    return plain_defaults(settings).get(name) if settings else None
