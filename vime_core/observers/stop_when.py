"""The observer `stop_when`: early stopping by a metric."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from vime_core.errors import ConfigError
from vime_core.plugins.interfaces import Observer
from vime_core.run.metrics import meaning

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from vime_core.observers.config import StopWhenConfig


class StopWhen(Observer):
    """Ends a run; a resumed run counts its steps anew."""

    def __init__(self, config: StopWhenConfig) -> None:
        self._config = config
        self._hits = 0

    def step_finished(self, step: int, metrics: Mapping[str, float]) -> str | None:
        """Why the run should end, or None. A step without the metric changes nothing.

        Raises:
            ConfigError: when the run has no such metric and vime knows none of that name.
        """
        config = self._config
        value = metrics.get(config.metric)
        if value is None:
            self._check_name(metrics)
            return None
        is_past = value >= config.threshold if config.direction == "above" else value <= config.threshold
        self._hits = self._hits + 1 if is_past else 0
        if self._hits < config.patience:
            return None
        return f"{config.metric} is {value:.6g}, {config.direction} {config.threshold:g}"

    def _check_name(self, metrics: Iterable[str]) -> None:
        name = self._config.metric
        if not meaning(name):
            close = get_close_matches(name, list(metrics), n=1)
            hint = f"did you mean {close[0]}?" if close else "docs/reference/metrics.md lists them"
            raise ConfigError(f"observers.{self._config.name}.metric={name}: there is no such metric; {hint}")
