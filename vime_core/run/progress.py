"""The terminal while a run goes on: one live line; plain lines where there is no terminal."""

from __future__ import annotations

import re
from collections import deque
from datetime import timedelta
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TextIO

RECENT_STEPS = 10
"""Steps whose mean time gives the time left."""


class Progress:
    """Shows step, reward, log-prob difference, tokens/s and time left, and notes above it."""

    def __init__(self, total_steps: int, stream: TextIO | None = None) -> None:
        """Shows nothing yet.

        Args:
            total_steps: The last step of the run.
            stream: Standard output when None.
        """
        self._total = total_steps
        self._console = Console(file=stream, highlight=False, soft_wrap=True)
        self._step_times: deque[float] = deque(maxlen=RECENT_STEPS)
        self._live: Live | None = None

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """A step is done; evaluation results among its metrics are printed on a line of their own."""
        if "perf/step_time_s" in metrics:
            self._step_times.append(metrics["perf/step_time_s"])
        results = evaluation_results(metrics)
        if results:
            self.note(f"step {step}: {results}")
        self._show(self._line(step, metrics))

    def note(self, message: str) -> None:
        """Print a line that stays."""
        self._console.print(Text(message))

    def close(self) -> None:
        """Leave the last state on the screen; safe to call twice."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _line(self, step: int, metrics: Mapping[str, float]) -> str:
        shown = (
            ("reward", "rollout/raw_reward", ".3f"),
            ("log-prob difference", "train/train_rollout_logprob_abs_diff", ".1e"),
            ("tokens/s", "perf/tokens_per_gpu_per_second", ",.0f"),
        )
        parts = [f"step {step}/{self._total}"]
        parts += [f"{label} {metrics[key]:{form}}" for label, key, form in shown if key in metrics]
        if self._step_times:
            seconds = (self._total - step) * sum(self._step_times) / len(self._step_times)
            parts.append(f"left {timedelta(seconds=round(seconds))}")
        return "  ".join(parts)

    def _show(self, line: str) -> None:
        if not self._console.is_terminal:
            self.note(line)
            return
        text = Text(line, no_wrap=True, overflow="ellipsis")
        if self._live is None:
            self._live = Live(text, console=self._console, auto_refresh=False)
            self._live.start()
        self._live.update(text, refresh=True)


def evaluation_results(metrics: Mapping[str, float]) -> str:
    """The accuracy on each held-out set, in words; empty when there is none."""
    found = ((re.fullmatch(r"eval/(.+)/accuracy", key), value) for key, value in metrics.items())
    return "  ".join(f"{match[1]} accuracy {value:.3f}" for match, value in found if match)
