"""Which rewards judge which rows: by the row's `data_source`, as `rewards.<name>.data_sources` says."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib import import_module
from typing import TYPE_CHECKING

from omegaconf import MISSING

from vime_core.config.schema import RewardConfig
from vime_core.errors import ConfigError
from vime_core.rewards.spec import RewardSpec
from vime_core.types import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from vime_core.plugins.entries import RewardEntry
    from vime_core.plugins.interfaces import Reward
    from vime_core.types import Prompt, Sample

EVERYTHING = "*"

NOT_ASKED = Verdict(0.0, "correct")
"""Changes nothing where verdicts are combined; the driver leaves it out of what it keeps."""


def covers(patterns: Sequence[str], data_source: str) -> bool:
    """Whether a row of this data source matches one of the glob patterns; upper and lower case differ."""
    return any(fnmatchcase(data_source, pattern) for pattern in patterns)


def is_restricted(config: RewardConfig) -> bool:
    """Whether a reward leaves rows to others."""
    return EVERYTHING not in config.data_sources


def reward_spec(name: str, entry: RewardEntry, config: RewardConfig) -> RewardSpec:
    """What scoring processes build: the reward, wrapped in `Routed` when it does not judge every row."""
    if not is_restricted(config):
        return RewardSpec(name, entry.factory, config, entry.text_only)
    settings = RoutedSettings(
        name=name,
        weight=config.weight,
        workers=config.workers,
        time_limit_s=config.time_limit_s,
        data_sources=list(config.data_sources),
        factory=entry.factory,
        settings=config,
    )
    return RewardSpec(name, f"{Routed.__module__}:{Routed.__qualname__}", settings, entry.text_only)


def check_coverage(rewards: Mapping[str, RewardConfig], prompts: Iterable[Prompt]) -> None:
    """Check that every row has a reward, and every reward a row.

    Args:
        rewards: settings by name.
        prompts: all rows of a run.

    Raises:
        ConfigError: names the row and its data source, or the reward whose patterns match nothing.
    """
    first_rows: dict[str, Prompt] = {}
    for prompt in prompts:
        first_rows.setdefault(prompt.data_source, prompt)
    for data_source, prompt in first_rows.items():
        if not any(covers(config.data_sources, data_source) for config in rewards.values()):
            raise uncovered(rewards, prompt)
    for name, config in rewards.items():
        if not any(covers(config.data_sources, data_source) for data_source in first_rows):
            there = ", ".join(map(repr, sorted(first_rows)))
            raise ConfigError(
                f"{_setting(name, config)} matches no row: the rows' data sources are {there}; correct the pattern, or "
                f"leave {name} out of reward=[...]"
            )


def uncovered(rewards: Mapping[str, RewardConfig], prompt: Prompt) -> ConfigError:
    """The error for a row that no reward judges."""
    settings = " ".join(_setting(name, config) for name, config in rewards.items())
    return ConfigError(
        f"no reward judges prompt {prompt.id} with data_source {prompt.data_source!r}: {settings}; add a pattern that "
        "matches it, or leave the row out"
    )


def _setting(name: str, config: RewardConfig) -> str:
    return f"rewards.{name}.data_sources=[{','.join(config.data_sources)}]"


@dataclass(kw_only=True)
class RoutedSettings(RewardConfig):
    """A reward and the rows it judges; travels to scoring processes."""

    factory: str = MISSING
    """Of the reward, `package.module:Class`."""
    settings: RewardConfig = MISSING
    """The reward's own settings."""


class Routed:
    """Implements `Reward` in scoring processes: says `NOT_ASKED` of rows that are left to other rewards."""

    def __init__(self, config: RoutedSettings) -> None:
        module, _, attribute = config.factory.partition(":")
        self._reward: Reward = getattr(import_module(module), attribute)(config.settings)
        self._patterns = config.data_sources

    def score(self, sample: Sample, prompt: Prompt) -> Verdict:
        """The reward's own verdict, or `NOT_ASKED`."""
        return self._reward.score(sample, prompt) if covers(self._patterns, prompt.data_source) else NOT_ASKED
