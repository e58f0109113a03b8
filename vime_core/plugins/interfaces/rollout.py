"""Rollout backends, and rollout functions with what they are given."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from vime_core.models.geometry import ModelGeometry
    from vime_core.plugins.interfaces.devices import Accelerator
    from vime_core.types import Completion, EngineEndpoint, Group, NodePlace, Prompt, Sample, SamplingParams, Verdict


class Generator(Protocol):
    """Token-in/token-out generation."""

    async def generate(
        self, token_ids: Sequence[int], params: SamplingParams, *, engine: str | None = None
    ) -> Completion:
        """Sample one response; `engine` names one engine, None lets the router choose.

        Raises:
            EngineError: when the engines cannot answer.
            DeadlineError: when the answer takes longer than the rollout's deadline.
        """
        ...


@dataclass(frozen=True, slots=True)
class RolloutContext:
    """What a rollout backend gets in the driver. Ray is initialised before `start`."""

    config: Any
    """The backend's own config dataclass (a subclass of `RolloutConfig`)."""
    model_path: Path
    geometry: ModelGeometry
    accelerator: Accelerator
    sync: str
    """Name of the chosen sync strategy."""
    dtype: str
    """The trainer's dtype; engines use it unless their config says otherwise."""
    run_id: str
    """Short and unique; shared-memory segments are named `vime-<run_id>-...`."""
    run_key: str = field(repr=False)
    """Secret of the run: engines and router ask for it."""
    seed: int
    threads: int
    """CPU threads of one engine."""
    engine_options: Sequence[Mapping[str, Any]]
    """Ray actor options of each engine (placement, resources, environment), one an engine."""
    engine_places: Sequence[NodePlace]
    """Where each engine listens, and the keeper of its node; one an engine."""
    keeper: str
    """Address of the keeper of the driver's node, for `vime_core.cluster.keeper.KeeperClient`."""
    log_folder: Path
    """Where servers write their logs."""
    start_deadline: float
    """Seconds."""
    generate_deadline: float
    """Seconds for one request."""
    stop_deadline: float
    """Seconds."""
    health_deadline: float = 120.0
    """Seconds that an engine or the router may leave health checks unanswered."""


class RolloutBackend(Generator, Protocol):
    """Engines and the router in front of them. Built in the driver from a `RolloutContext`."""

    def start(self) -> None:
        """Start all engines (with dummy weights) and the router, and wait until they answer."""
        ...

    def endpoints(self) -> list[EngineEndpoint]:
        """The running engines, for sync strategies."""
        ...

    async def pause(self) -> None:
        """Let no engine schedule anything, requests in flight are kept."""
        ...

    async def resume(self) -> None:
        """Undo `pause`."""
        ...

    async def abort(self) -> None:
        """End all requests in flight; their callers get completions with finish reason `abort`."""
        ...

    async def sleep(self) -> None:
        """Free device memory while training; a no-op where the accelerator cannot."""
        ...

    async def wake(self) -> None:
        """Undo `sleep`."""
        ...

    def health(self) -> None:
        """Return at once when every engine and the router are alive, as far as is known.

        Asked about twice a second, from a thread of its own, while the run trains: what takes time is done elsewhere.

        Raises:
            EngineError: names the part that is dead, or silent for longer than `health_deadline`, and why.
        """
        ...

    def close(self) -> None:
        """End what `start` started; safe to call twice and after a failed start."""
        ...


class RolloutRecord(Protocol):
    """Rollouts that exist already. Built in the driver as `RolloutRecord(config, steps)`, before anything starts.

    The factory raises a `UserError` when a step from 1 to `steps` is missing, or was drawn with other settings.
    """

    @property
    def folder(self) -> Path:
        """Where it lies; no run may write there while it is read."""
        ...

    def groups(self, step: int) -> list[Group]:
        """All groups of one step; every sample has its verdict."""
        ...

    def state(self, step: int) -> dict[str, Any]:
        """What identifies the steps up to `step`, as plain JSON."""
        ...

    def check(self, state: Mapping[str, Any]) -> None:
        """Check that `state` was taken from this record.

        Raises:
            RunFolderError: when it was not.
        """
        ...


class RolloutTools(Generator, Protocol):
    """What a rollout function works with: the engines, the tokenizer, and the rewards."""

    def encode(self, text: str) -> list[int]:
        """Token ids; special tokens only where the text spells them out."""
        ...

    def decode(self, token_ids: Iterable[int], *, skip_special: bool = True) -> str:
        """The text, without special tokens unless they are wanted."""
        ...

    def next_turn(self, response_ids: Sequence[int], messages: Sequence[Mapping[str, str]]) -> list[int]:
        """What comes between a response and the next one, as the chat template has it.

        Args:
            response_ids: [R] the response so far. Its end-of-turn token is not repeated, and added when it lacks one.
            messages: `role` and `content` of what is said to the policy.

        Returns:
            Token ids: end of turn, the messages, and the begin of the policy's next turn.
        """
        ...

    async def check(self, sample: Sample, prompt: Prompt) -> Verdict:
        """What the rewards of the run say of a sample as it is so far; leaves the sample as it is.

        Raises:
            RewardError: when scoring cannot go on. A reward that fails here gives the status `timeout` or `error`.
        """
        ...


class RolloutFunction(Protocol):
    """How one prompt becomes samples; owns turn structure and loss masks."""

    async def run(
        self, prompt: Prompt, group_id: str, params: Sequence[SamplingParams], tools: RolloutTools
    ) -> list[Sample]:
        """One sample for each of `params`, index by position. Verdicts are left to the rewards.

        A sample is one sequence of tokens, whatever its turns: tokens that the policy did not choose have `loss_mask`
        False and log-prob 0, and the policy version of those around them. All its turns together have at most
        `max_tokens` tokens, so that the sequence fits the model.
        """
        ...
