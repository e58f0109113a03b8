"""Offers every component's defaults to Hydra."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from hydra.core.config_store import ConfigStore

from vime_core.config.slots import AUTO_CONFIGS, SEVERAL, SINGLE, auto_settings, default_settings, root_settings
from vime_core.config.slots import settings_key as package_of
from vime_core.plugins.kinds import AUTO

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vime_core.plugins.manager import Plugins

ROOT = "schema"
"""Name of the config with the defaults of everything that is no component."""


@contextmanager
def offered(plugins: Plugins) -> Iterator[None]:
    """Store the defaults of all components for the length of the block.

    They are stored as plain values: keys and types are checked after composition, all in one way.
    """
    store = ConfigStore.instance()
    before = store.repo
    store.repo = {key: value for key, value in before.items() if key not in (*SINGLE, *SEVERAL)}
    try:
        store.store(name=ROOT, node=root_settings(), provider="vime-core")
        for group in (*SINGLE, *SEVERAL):
            store.repo[group] = {}
            for name, registered in plugins.entries(group).items():
                store.store(
                    group=group,
                    name=name,
                    node=default_settings(registered.entry),
                    package=package_of(group, name),
                    provider=registered.plugin.distribution,
                )
        for group in AUTO_CONFIGS:
            store.store(group=group, name=AUTO, node=auto_settings(group), provider="vime-core")
        yield
    finally:
        store.repo = before
