"""Where prompts come from, which groups are kept, what an answer is worth."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vime_core.types import Group, Prompt, Sample, Verdict


class PromptSource(Protocol):
    """An ordered, endless, resumable stream of prompts: epoch after epoch."""

    def __len__(self) -> int:
        """Prompts in one epoch, after filtering."""
        ...

    def take(self, count: int) -> list[Prompt]:
        """The next `count` prompts; crosses into the next epoch when one ends."""
        ...

    def state(self) -> dict[str, Any]:
        """Position as plain JSON: at least `epoch`, `position` and what identifies the data."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`.

        Raises:
            RunFolderError: when the data are not those that `state` was taken from.
        """
        ...

    def report(self) -> Mapping[str, int]:
        """Counts worth telling once, e.g. `rows`, `too_long`."""
        ...


class Filter(Protocol):
    """Keeps or drops scored groups."""

    def keep(self, group: Group) -> str | None:
        """None to keep the group, else a short reason that is counted in the metrics."""
        ...


class Reward(Protocol):
    """Scores samples in a worker process: a plain function without event loop, threads or signals."""

    def score(self, sample: Sample, prompt: Prompt) -> Verdict:
        """The verdict on one sample."""
        ...
