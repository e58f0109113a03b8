"""What hooks return: frozen descriptions of components. Nothing heavy is imported to make one."""

from __future__ import annotations

from dataclasses import dataclass, is_dataclass
from importlib import import_module, util
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING, Any, ClassVar

from vime_core.errors import PluginError

if TYPE_CHECKING:
    from collections.abc import Callable

    from vime_core.models.geometry import ModelGeometry
    from vime_core.plugins.interfaces import Accelerator


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One selectable component.

    Raises:
        PluginError: if the name, the factory or the config is malformed; the plugin's author must mend it.
    """

    kind: ClassVar[str]
    """Singular name of the kind, as it appears in messages."""
    group: ClassVar[str]
    """Key of the configuration that selects it."""

    name: str
    """What users write: lower case, digits and underscores."""
    summary: str
    """One line for `vime plugins list`."""
    config: type
    """Dataclass with the component's settings: defaults for all fields, a docstring below each."""
    factory: str
    """`package.module:Class`, imported only when the component is chosen."""
    requires: tuple[str, ...] = ()
    """Importable modules without which the component is unavailable."""
    probe: Callable[[], str | None] | None = None
    """Says why the component is unavailable here, or None; must be quick and import nothing heavy."""
    doctor: str | None = None
    """`package.module:function` that returns further `Finding`s of this node, for `vime doctor`."""

    def __post_init__(self) -> None:
        if not self.name or not self.name.replace("_", "a").isalnum() or self.name != self.name.lower():
            raise PluginError(
                f"{self.kind} entry name {self.name!r} must be lower case letters, digits and underscores"
            )
        if not is_dataclass(self.config):
            raise PluginError(f"{self.kind} entry {self.name!r}: config must be a dataclass, not {self.config!r}")
        if self.factory.count(":") != 1:
            raise PluginError(f"{self.kind} entry {self.name!r}: factory must look like 'package.module:Class'")

    def unavailable(self) -> str | None:
        """Why the component cannot be used here, or None."""
        for module in self.requires:
            if not _is_installed(module):
                return f"module {module} is not installed"
        return self.probe() if self.probe else None

    def load(self) -> Any:
        """Import and return the factory."""
        module, _, attribute = self.factory.partition(":")
        return getattr(import_module(module), attribute)


def _is_installed(module: str) -> bool:
    # util.find_spec would import the parents of a dotted name.
    name, *parts = module.split(".")
    spec = util.find_spec(name)
    for part in parts:
        if spec is None or spec.submodule_search_locations is None:
            return False
        name = f"{name}.{part}"
        spec = PathFinder.find_spec(name, spec.submodule_search_locations)
    return spec is not None


@dataclass(frozen=True, kw_only=True)
class AlgorithmEntry(Entry):
    """Factory: `Algorithm(config)`."""

    kind = "algorithm"
    group = "algorithm"


@dataclass(frozen=True, kw_only=True)
class ModelEntry(Entry):
    """Factory: `ModelFamily()`."""

    kind = "model"
    group = "model"


@dataclass(frozen=True, kw_only=True)
class TrainBackendEntry(Entry):
    """Factory: `TrainBackend(context)`, built in every trainer rank."""

    kind = "training backend"
    group = "train"

    trains: bool = True
    """False: it only holds the weights of the model folder; `update` and `logprobs` are never called."""
    check: Callable[[Any, ModelGeometry], None] | None = None
    """Raises `ConfigError` when the model cannot be trained with these settings, e.g. shared out over so many ranks.

    Called before any process starts; must import nothing heavy.
    """
    converter: str | None = None
    """`package.module:Class` of a `CheckpointConverter`; None where the backend has no checkpoints of its own."""


@dataclass(frozen=True, kw_only=True)
class RolloutBackendEntry(Entry):
    """Factory: `RolloutBackend(context)`, built in the driver; without engines, `RolloutRecord(config, steps)`."""

    kind = "rollout backend"
    group = "rollout"

    engines: bool = True
    """False: no engines run, the groups of each step exist already."""
    check: Callable[[Any, Accelerator], None] | None = None
    """Raises `ConfigError` when engines cannot run with these settings on an accelerator.

    Called before any process starts; must import nothing heavy.
    """


@dataclass(frozen=True, kw_only=True)
class RolloutFunctionEntry(Entry):
    """Factory: `RolloutFunction(config)`."""

    kind = "rollout function"
    group = "rollout_function"


@dataclass(frozen=True, kw_only=True)
class PromptSourceEntry(Entry):
    """Factory: `PromptSource(config, tokenizer, seed, max_prompt_tokens)`; a `vime_core.data.tokenizer.Tokenizer`."""

    kind = "prompt source"
    group = "data"


@dataclass(frozen=True, kw_only=True)
class FilterEntry(Entry):
    """Factory: `Filter(config)`."""

    kind = "filter"
    group = "filter"


@dataclass(frozen=True, kw_only=True)
class RewardEntry(Entry):
    """Factory: `Reward(config)`, built in every scoring process."""

    kind = "reward"
    group = "reward"

    corpus: str | None = None
    """`package:folder` with audit files (`*.jsonl`) for `vime verifier audit`; none when None."""
    text_only: bool = False
    """It reads nothing of a sample but `response_text`; the rest, which is many times longer, then stays where it is
    unless another reward wants it."""


@dataclass(frozen=True, kw_only=True)
class SyncStrategyEntry(Entry):
    """Factory: `SyncStrategy(config, rank, world_size)`, built in every trainer rank."""

    kind = "sync strategy"
    group = "sync"

    train_backends: frozenset[str] | None = None
    """Names of training backends it works with; None for all. Checked at configuration time."""
    rollout_backends: frozenset[str] | None = None
    """Names of rollout backends it works with; None for all."""
    accelerators: frozenset[str] | None = None
    """Names of accelerators it works with; None for all."""
    placements: frozenset[str] = frozenset({"colocated", "disjoint"})
    """Placements it works with."""
    reason: str | None = None
    """Why it works with no other placement, for the message that refuses one."""
    engines: bool = True
    """False: it pushes nothing, for rollout backends without engines."""
    shared_memory: bool = False
    """Weights wait in /dev/shm of the trainer's node, `sync.bucket_mib` of them at most; the room is checked before a
    run starts."""
    trainer_buffers: int = 0
    """Buffers that it keeps on a device of the trainer, for `vime plan`. They share `sync.bucket_mib`, and each can
    hold the largest tensor."""
    engine_buffers: int = 0
    """As many bytes as so many of these buffers are in use on each device of an engine while it takes weights."""
    priority: int = 0
    """`sync=auto` takes the fitting entry with the highest priority."""


@dataclass(frozen=True, kw_only=True)
class AcceleratorEntry(Entry):
    """Factory: `Accelerator(config)`."""

    kind = "accelerator"
    group = "accelerator"

    priority: int = 0
    """`accelerator=auto` takes the available entry with the highest priority."""


@dataclass(frozen=True, kw_only=True)
class TrackerEntry(Entry):
    """Factory: `Tracker(config, run_folder)`."""

    kind = "tracker"
    group = "tracker"


@dataclass(frozen=True, kw_only=True)
class ObserverEntry(Entry):
    """Factory: `Observer(config)`."""

    kind = "observer"
    group = "observer"
