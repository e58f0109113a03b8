"""The typed configuration of a run, and what it was composed from."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from omegaconf import OmegaConf

from vime_core.config.limits import check_complete, missing_keys
from vime_core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from omegaconf import DictConfig

    from vime_core.config.schema import Config
    from vime_core.plugins.manager import Plugins
    from vime_core.plugins.registration import Registered


@dataclass(frozen=True)
class ComposedConfig:
    """The configuration of a run: every key known, every value of its type and within its limits."""

    typed: DictConfig
    """The typed tree; required values may be missing."""
    plugins: Plugins
    """The components there are."""
    components: Mapping[str, Registered]
    """Full key of the settings (`algorithm`, `rewards.dapo_math`) -> the chosen entry; `model=auto` is not among
    them."""
    provenance: Mapping[str, str]
    """Full key -> where its value came from."""
    overrides: tuple[str, ...]
    """What the user gave."""

    @property
    def missing(self) -> list[str]:
        """Full keys of required values that nothing sets."""
        return missing_keys(self.typed)

    @cached_property
    def config(self) -> Config:
        """The tree as dataclass instances; each component's settings are of its own class.

        Raises:
            ConfigError: when a required value is missing, or a component refuses its settings with a ValueError.
        """
        self.check_complete()
        try:
            return cast("Config", OmegaConf.to_object(self.typed))
        except ValueError as error:
            raise ConfigError(str(error).splitlines()[0]) from error

    @property
    def tree(self) -> dict[str, Any]:
        """The tree as plain values, to be saved; `compose(config_file=...)` reads it again."""
        return cast("dict[str, Any]", OmegaConf.to_container(self.typed))

    def check_complete(self) -> None:
        """Check that every required value is there.

        Raises:
            ConfigError: names the keys that are missing and how to set them.
        """
        check_complete(self.typed)
