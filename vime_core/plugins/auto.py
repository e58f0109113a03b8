"""What `auto` means: the component that fits and has the highest priority."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from vime_core.errors import PluginError
from vime_core.plugins.entries import AcceleratorEntry, RolloutBackendEntry, SyncStrategyEntry

if TYPE_CHECKING:
    from collections.abc import Callable

    from vime_core.plugins.entries import Entry
    from vime_core.plugins.manager import Plugins
    from vime_core.plugins.registration import Registered


def choose_accelerator(plugins: Plugins) -> Registered:
    """The available accelerator with the highest priority.

    Raises:
        PluginError: when none is available; says why for each.
    """
    return _choose(plugins, AcceleratorEntry, lambda entry: None)


def choose_sync(
    plugins: Plugins, *, train: str, rollout: str, accelerator: str, placement: str, engines: bool = True
) -> Registered:
    """The available sync strategy with the highest priority that fits the other components, all given by name.

    `engines`: whether the rollout backend has engines.

    Raises:
        PluginError: when none fits; says why for each.
    """
    return _choose(
        plugins,
        SyncStrategyEntry,
        lambda entry: sync_misfit(
            cast("SyncStrategyEntry", entry),
            train=train,
            rollout=rollout,
            accelerator=accelerator,
            placement=placement,
            engines=engines,
        ),
    )


def sync_misfit(
    entry: SyncStrategyEntry, *, train: str, rollout: str, accelerator: str, placement: str, engines: bool = True
) -> str | None:
    """Why a sync strategy cannot work between the other components, all given by name, or None.

    `engines`: whether the rollout backend has engines.
    """
    if entry.engines != engines:
        return f"pushes {'into engines' if entry.engines else 'nothing'}, and rollout backend {rollout} has " + (
            "engines" if engines else "none"
        )
    for what, allowed, chosen in (
        ("training backend", entry.train_backends, train),
        ("rollout backend", entry.rollout_backends, rollout),
        ("accelerator", entry.accelerators, accelerator),
        ("placement", entry.placements, placement),
    ):
        if allowed is not None and chosen not in allowed:
            reason = f" ({entry.reason})" if entry.reason and what == "placement" else ""
            return f"does not work with {what} {chosen}, only with {', '.join(sorted(allowed))}{reason}"
    return None


def has_engines(rollout: Entry) -> bool:
    """Whether the rollout backend of this entry runs engines."""
    return isinstance(rollout, RolloutBackendEntry) and rollout.engines


_Prioritised = AcceleratorEntry | SyncStrategyEntry


def _choose(
    plugins: Plugins,
    entry_type: type[_Prioritised],
    misfit: Callable[[_Prioritised], str | None],
) -> Registered:
    reasons: dict[str, str] = {}
    best: Registered | None = None
    best_priority = 0
    for name, registered in plugins.entries(entry_type.group).items():
        entry = cast("_Prioritised", registered.entry)
        reason = misfit(entry) or registered.unavailable()
        if reason:
            reasons[name] = reason
        elif best is None or entry.priority > best_priority:
            best, best_priority = registered, entry.priority
    if best is None:
        told = "; ".join(f"{name}: {reason}" for name, reason in reasons.items()) or "no plugin brings one"
        raise PluginError(f"no {entry_type.kind} fits: {told}")
    return plugins.find(entry_type.group, best.entry.name)
