"""Settings that are right alone and wrong together; pure functions, run before any process starts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from vime_core.config.sources import DEFAULT, where_from
from vime_core.errors import ConfigError, PluginError
from vime_core.models.hf import LocalModel, inspect_model
from vime_core.plugins.auto import has_engines, sync_misfit
from vime_core.plugins.entries import RolloutBackendEntry, SyncStrategyEntry, TrainBackendEntry
from vime_core.plugins.kinds import AUTO

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vime_core.config.composed import ComposedConfig
    from vime_core.config.schema import Config
    from vime_core.models.family import ModelFamily
    from vime_core.models.geometry import ModelGeometry
    from vime_core.plugins.entries import Entry
    from vime_core.plugins.interfaces import Accelerator, Needs
    from vime_core.plugins.registration import Registered


def check_settings(config: Config, provenance: Mapping[str, str]) -> None:
    """Check what the configuration alone can tell.

    Args:
        config: every required value may be missing.
        provenance: full key -> where its value came from, for messages.

    Raises:
        ConfigError: names the keys, their values and a remedy.
    """
    if not config.rewards:
        raise ConfigError("no reward is chosen; choose one with reward=[<name>]")
    if config.eval.every and not config.evals:
        raise ConfigError(
            f"eval.every={config.eval.every}{where_from(provenance, 'eval.every')}, but there is no held-out set; add "
            "one with evals.<name>.path=<file>"
        )
    if config.resume.mode == "must" and config.resume.run is None:
        origin = where_from(provenance, "resume.mode")
        raise ConfigError(f"resume.mode=must{origin} needs the run folder to continue: add resume.run=<folder>")
    if config.evals and provenance.get("eval.every", DEFAULT) == DEFAULT:
        raise ConfigError(
            f"evals.{next(iter(config.evals))}{where_from(provenance, 'evals')} is never used: set eval.every=<steps>, "
            "or eval.every=0 to leave it out"
        )
    _check_batch(config, provenance)
    _check_cluster(config, provenance)


def check_sync(config: Config, components: Mapping[str, Registered]) -> None:
    """Check that the sync strategy works between the other components.

    Raises:
        PluginError: names what it does not work with.
    """
    entry = components["sync"].entry
    if isinstance(entry, SyncStrategyEntry):
        misfit = sync_misfit(
            entry,
            train=components["train"].entry.name,
            rollout=components["rollout"].entry.name,
            accelerator=components["accelerator"].entry.name,
            placement=config.placement,
            engines=has_engines(components["rollout"].entry),
        )
        if misfit:
            raise PluginError(f"sync={entry.name} {misfit}; sync={AUTO} takes one that fits")


def check_rollout(config: Config, components: Mapping[str, Registered], provenance: Mapping[str, str]) -> None:
    """Check that what a rollout backend without engines cannot give is not asked for.

    Raises:
        ConfigError: names the keys and a remedy.
    """
    rollout, train = components["rollout"].entry, components["train"].entry
    if has_engines(rollout):
        return
    if config.eval.every:
        raise ConfigError(
            f"eval.every={config.eval.every}{where_from(provenance, 'eval.every')} needs engines, and "
            f"rollout={rollout.name} has none; set eval.every=0"
        )
    if isinstance(train, TrainBackendEntry) and not train.trains:
        raise ConfigError(
            f"train={train.name} trains nothing and rollout={rollout.name} generates nothing; choose another of one"
        )


def check_lengths(config: Config, geometry: ModelGeometry, provenance: Mapping[str, str]) -> None:
    """Check that the longest sample fits the model.

    Raises:
        ConfigError: names keys, values and the model's limit.
    """
    rollout = config.rollout
    longest = rollout.max_prompt_tokens + rollout.max_response_tokens
    if longest > geometry.max_positions:
        raise ConfigError(
            f"{_told('rollout.max_prompt_tokens', rollout.max_prompt_tokens, provenance)} plus "
            f"{_told('rollout.max_response_tokens', rollout.max_response_tokens, provenance)} are {longest} tokens, "
            f"but the model has {geometry.max_positions} positions (max_position_embeddings in its config.json); lower "
            "one of them"
        )


def check_parallel(config: Config, geometry: ModelGeometry, provenance: Mapping[str, str]) -> None:
    """Check that the engines can share out the model.

    Raises:
        ConfigError: names key, value and what divides.
    """
    size = config.rollout.tensor_parallel_size
    if geometry.num_heads % size:
        fitting = [number for number in range(1, geometry.num_heads + 1) if not geometry.num_heads % number]
        raise ConfigError(
            f"{_told('rollout.tensor_parallel_size', size, provenance)} does not divide the model's "
            f"{geometry.num_heads} attention heads; choose one of {', '.join(map(str, fitting))}"
        )


def check_sampling(config: Config, needs: Needs, provenance: Mapping[str, str]) -> None:
    """Check that rollout log-probs mean what the algorithm takes them for.

    Under top-p and top-k an engine's log-probs are those of a truncated distribution, which the trainer's are not.

    Raises:
        ConfigError: names the keys and the remedies.
    """
    rollout = config.rollout
    if needs.rollout_logprobs and (rollout.top_p < 1 or rollout.top_k > 0):
        raise ConfigError(
            f"algorithm={config.algorithm.name} takes the rollout's log-probs as those of the behaviour policy; with "
            f"{_told('rollout.top_p', f'{rollout.top_p:g}', provenance)} and "
            f"{_told('rollout.top_k', rollout.top_k, provenance)} they are not: set rollout.top_p=1 rollout.top_k=-1, "
            "or let the trainer compute them"
        )


def check_model(composed: ComposedConfig) -> LocalModel:
    """Check the model folder, that the longest sample fits the model, and that engines can share it out.

    Raises:
        ConfigError: when it does not fit.
        ModelError: when the folder is incomplete or of no known family.
    """
    config = composed.config
    model = inspect_model(Path(config.model.path), families(composed), config.model.name)
    check_lengths(config, model.geometry, composed.provenance)
    if has_engines(composed.components["rollout"].entry):
        check_parallel(config, model.geometry, composed.provenance)
    check_training(config, composed.components["train"].entry, model.geometry)
    return model


def check_training(config: Config, entry: Entry, geometry: ModelGeometry) -> None:
    """Check that the training backend can train the model with its settings.

    Raises:
        ConfigError: what the backend says, in one line.
    """
    if isinstance(entry, TrainBackendEntry) and entry.check is not None:
        entry.check(config.train, geometry)


def check_engines(config: Config, entry: Entry, accelerator: Accelerator) -> None:
    """Check that the rollout backend can run its engines on the accelerator with its settings.

    Raises:
        ConfigError: what the backend says, in one line.
    """
    if isinstance(entry, RolloutBackendEntry) and entry.check is not None:
        entry.check(config.rollout, accelerator)


def families(composed: ComposedConfig) -> dict[str, ModelFamily]:
    """The model families to choose from: the chosen one, or with `model=auto` all that are available."""
    chosen = composed.components.get("model")
    if chosen is not None:
        return {chosen.entry.name: chosen.build()}
    entries = composed.plugins.entries("model")
    return {name: registered.build() for name, registered in entries.items() if not registered.unavailable()}


def _told(key: str, value: object, provenance: Mapping[str, str]) -> str:
    return f"{key}={value}{where_from(provenance, key)}"


def _check_cluster(config: Config, provenance: Mapping[str, str]) -> None:
    """Keys that choose nodes choose among those of a cluster, for trainer and engines apart."""
    cluster = config.cluster
    for name, value in (("train_resource", cluster.train_resource), ("rollout_resource", cluster.rollout_resource)):
        if value is None:
            continue
        told = _told(f"cluster.{name}", value, provenance)
        if cluster.address is None:
            raise ConfigError(f"{told} names nodes of a cluster: add cluster.address=<host:port> of its head node")
        if config.placement == "colocated":
            raise ConfigError(f"{told} places trainer and engines apart, so set placement=disjoint")


def _check_batch(config: Config, provenance: Mapping[str, str]) -> None:
    prompts, updates = config.rollout.prompts_per_step, config.algorithm.updates_per_rollout
    if prompts % updates:
        below, above = prompts // updates * updates, (prompts // updates + 1) * updates
        near = " or ".join(str(number) for number in (below, above) if number)
        raise ConfigError(
            f"{_told('rollout.prompts_per_step', prompts, provenance)} does not divide into "
            f"{_told('algorithm.updates_per_rollout', updates, provenance)} equal updates; set "
            f"rollout.prompts_per_step={near}"
        )
