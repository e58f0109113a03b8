"""A distribution with one component of each kind, for tests that compose configurations without real plugins."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vime_core.testing.distributions import FakeSite

NAME = "acme"
"""Name of the distribution, of its plugin and of each of its components."""

OVERRIDES = [f"{group}={NAME}" for group in ("algorithm", "train", "rollout", "sync", "reward")]
"""Chooses its components where core has none; the others keep their defaults."""

_HOOKS = """
from dataclasses import dataclass, field

from vime_core import hookimpl
from vime_core.config import schema
from vime_core.plugins import entries


@dataclass(kw_only=True)
class AlgorithmSettings(schema.AlgorithmConfig):
    clip_ratio: float = schema.option(0.2, above=0)
    kind: str = schema.option("mean", choices=("mean", "sum"))


@dataclass(kw_only=True)
class TrainSettings(schema.TrainConfig):
    layers: list[int] = field(default_factory=list)


@dataclass(kw_only=True)
class RolloutSettings(schema.RolloutConfig):
    memory_gib: float | None = schema.option(None, above=0)


@dataclass(kw_only=True)
class SyncSettings(schema.SyncConfig):
    bucket_mib: int = schema.option(64, low=1)
    segment: str = "acme"


@dataclass(kw_only=True)
class RewardSettings(schema.RewardConfig):
    strictness: int = 3


@dataclass(kw_only=True)
class Settings(schema.ComponentConfig):
    every: int = schema.option(1, low=1)


def entry(kind, config, **more):
    return [kind(name="acme", summary="for tests", config=config, factory="acme.parts:Part", **more)]


@hookimpl
def vime_algorithms():
    return entry(entries.AlgorithmEntry, AlgorithmSettings)


@hookimpl
def vime_train_backends():
    return entry(entries.TrainBackendEntry, TrainSettings)


@hookimpl
def vime_rollout_backends():
    return entry(entries.RolloutBackendEntry, RolloutSettings)


@hookimpl
def vime_sync_strategies():
    fit = {name: frozenset({"acme"}) for name in ("train_backends", "rollout_backends")}
    return entry(entries.SyncStrategyEntry, SyncSettings, accelerators=frozenset({"cpu"}), **fit)


@hookimpl
def vime_rewards():
    return entry(entries.RewardEntry, RewardSettings)


@hookimpl
def vime_filters():
    return entry(entries.FilterEntry, Settings)


@hookimpl
def vime_trackers():
    return entry(entries.TrackerEntry, Settings)


@hookimpl
def vime_observers():
    return entry(entries.ObserverEntry, Settings)
"""


def install_components(site: FakeSite) -> None:
    """Install the distribution into a fake site."""
    site.install(NAME, {NAME: f"{NAME}.hooks"}, {f"{NAME}/hooks.py": _HOOKS})
