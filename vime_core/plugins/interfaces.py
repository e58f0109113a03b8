"""What each kind of component does. Shapes follow the legend of `vime_core.types`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from vime_core.models.family import ModelFamily as ModelFamily

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    import torch

    from vime_core.models.geometry import ModelGeometry, TensorRule
    from vime_core.types import (
        Completion,
        EngineEndpoint,
        Float32Array,
        Group,
        IntArray,
        MicroBatch,
        NodePlace,
        Prompt,
        PushReport,
        Sample,
        SamplingParams,
        TrainSample,
        UpdateBatch,
        UpdateReport,
        Verdict,
    )


# algorithms


@dataclass(frozen=True, slots=True)
class Needs:
    """What the trainer must supply for an algorithm; follows from its configuration."""

    old_logprobs: bool
    """A separate pass of the trainer before the first update of the step."""
    ref_logprobs: bool
    """A pass of the reference policy (the weights the run started from)."""
    rollout_logprobs: bool
    """The rollout's log-probs enter the loss as those of the behaviour policy."""
    entropy: bool
    """Differentiable entropy of each token's distribution."""
    updates_per_rollout: int = 1
    """The samples of a step are split, by group, into this many optimizer updates."""


@dataclass(frozen=True, slots=True)
class LossInputs:
    """Per-token tensors of one micro-batch, float32, [T] unless said otherwise; aligned as in `MicroBatch`.

    Entries outside `loss_mask` may hold any value, also nan: select with `torch.where`, never multiply.
    """

    logprobs: torch.Tensor
    """Current policy, differentiable."""
    entropy: torch.Tensor | None
    loss_mask: torch.Tensor
    """bool"""
    advantages: torch.Tensor
    rollout_logprobs: torch.Tensor
    old_logprobs: torch.Tensor | None
    ref_logprobs: torch.Tensor | None
    cu_seqlens: torch.Tensor
    """[S+1] int; whole sequences only, so per-sequence sums need no other rank."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A mean in two parts, summed over micro-batches and ranks before dividing."""

    total: torch.Tensor
    """Scalar."""
    count: torch.Tensor | None
    """Scalar; None divides by the declared denominator of the loss."""


@dataclass(frozen=True, slots=True)
class LossOutput:
    """A sum over tokens: the trainer divides by the declared denominator, once, globally."""

    loss: torch.Tensor
    """Scalar, differentiable; 0 (and attached to the graph) when the mask is empty."""
    metrics: Mapping[str, Metric]


class Algorithm(Protocol):
    """From scored groups to a loss. Built in the driver and in every trainer rank from the same config."""

    def needs(self) -> Needs:
        """What the trainer must supply."""
        ...

    def advantages(self, groups: Sequence[Group]) -> list[TrainSample]:
        """Per-token advantages of all judged samples that can teach something, in the order of `groups`."""
        ...

    def denominator(self, mask_lengths: IntArray) -> float:
        """Global denominator of the loss; 0 when nothing is trained on.

        Args:
            mask_lengths: [N] number of unmasked tokens of each sample of the update, over all ranks.
        """
        ...

    def loss(self, inputs: LossInputs) -> LossOutput:
        """The loss of one micro-batch, summed, not divided."""
        ...


# training


@dataclass(frozen=True, slots=True)
class TrainContext:
    """What a training backend gets on one rank. torch.distributed is initialised before `start`."""

    rank: int
    world_size: int
    config: Any
    """The backend's own config dataclass (a subclass of `TrainConfig`)."""
    model_path: Path
    geometry: ModelGeometry
    tensor_map: Sequence[TensorRule]
    accelerator: Accelerator
    device: str
    """torch device of this rank, e.g. `cpu`, `cuda:0`."""
    temperature: float
    """Sampling temperature; logits are divided by it before every log-softmax."""
    keep_reference: bool
    """Whether `logprobs(..., reference=True)` will be asked for."""
    total_updates: int
    """Optimizer updates in the whole run, for learning-rate schedules."""
    seed: int


class TrainBackend(Protocol):
    """One rank of the trainer. All methods are collective: every rank calls them in the same order."""

    def start(self) -> None:
        """Build the model, load the weights, make the optimizer."""
        ...

    def data_parallel(self) -> tuple[int, int]:
        """(rank, size) among data-parallel ranks; batches are addressed to the data-parallel rank."""
        ...

    def logprobs(self, micro_batches: Sequence[MicroBatch], *, reference: bool = False) -> list[Float32Array]:
        """[T] log-probs for each micro-batch, without gradient, at the context's temperature.

        Free of nan; 0 at the first token of each sequence. Every rank of a data-parallel replica returns the same.
        """
        ...

    def update(self, batch: UpdateBatch, algorithm: Algorithm) -> UpdateReport:
        """One optimizer update."""
        ...

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Hugging Face names and full, contiguous tensors, layer by layer; collective. Valid until the next item."""
        ...

    def save(self, folder: Path) -> None:
        """Write weights, optimizer, schedule and random states; collective."""
        ...

    def load(self, folder: Path) -> None:
        """Read what `save` wrote; collective."""
        ...

    def sleep(self) -> None:
        """Free device memory while engines generate; a no-op where the accelerator cannot."""
        ...

    def wake(self) -> None:
        """Undo `sleep`."""
        ...

    def close(self) -> None:
        """Release what `start` took."""
        ...


class CheckpointConverter(Protocol):
    """Model folders to checkpoints of a training backend and back; built as `CheckpointConverter(model)`.

    `model` is the `LocalModel` that the weights come from, or whose configuration a checkpoint has. Runs in a process
    of its own; the whole model is never in memory.
    """

    def write(self, folder: Path, progress: Callable[[int], None]) -> None:
        """Write the weights of the model folder as a checkpoint, in their dtype.

        Args:
            folder: new; made.
            progress: gets the bytes of each parameter that is done.
        """
        ...

    def read(self, folder: Path, progress: Callable[[int], None]) -> Iterator[tuple[str, torch.Tensor]]:
        """Hugging Face names and tensors of a checkpoint, layer by layer; valid until the next item.

        Raises:
            RunFolderError: when it is missing, damaged or of another model.
        """
        ...


# rollout


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


# sync, accelerators, observers


class SyncStrategy(Protocol):
    """Moves weights into engines. One object a trainer rank; all methods are collective."""

    def connect(self, endpoints: Sequence[EngineEndpoint]) -> None:
        """Prepare every engine for pushes."""
        ...

    def push(self, weights: Iterable[tuple[str, torch.Tensor]], version: int) -> PushReport | None:
        """Move all weights into all (paused) engines and stamp them; the report comes from rank 0.

        Raises:
            SyncError: when any engine did not confirm; the engines are then unusable.
        """
        ...

    def close(self) -> None:
        """Release buffers; safe to call twice."""
        ...


class Accelerator(Protocol):
    """Devices of one kind on this node."""

    name: str
    torch_backend: str
    """For torch.distributed, e.g. `gloo`, `nccl`."""
    ray_resource: str
    """Ray's name for one device: `CPU` or `GPU`."""
    can_sleep: bool
    """Whether engines can release device memory."""

    def available(self) -> str | None:
        """Why there is no such device here, or None."""
        ...

    def device(self, local_rank: int) -> str:
        """torch device string."""
        ...

    def device_count(self) -> int:
        """Devices on this node; on the CPU the number of usable cores."""
        ...

    def ray_environment(self) -> dict[str, str]:
        """What Ray's own processes, and the driver before it imports Ray, need in their environment.

        Raises:
            ResourceError: names the inherited variable that is wrong.
        """
        ...

    def child_environment(self, devices: Sequence[int], threads: int) -> dict[str, str]:
        """Environment that makes a child process number these devices from 0 and use so many threads.

        Args:
            devices: positions among the devices that this node offers.
            threads: of the process.

        Raises:
            ResourceError: names the inherited variable that is wrong.
        """
        ...

    def prepare_process(self, threads: int) -> None:
        """Called in a trainer rank before torch.distributed starts: threads, device selection."""
        ...

    def memory(self) -> tuple[int, int]:
        """(free, total) bytes of device memory; host memory on the CPU."""
        ...


class Tracker(Protocol):
    """Receives metrics."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """One step's metrics."""
        ...

    def close(self) -> None:
        """Flush."""
        ...


class Observer:
    """Told of each stage; override what is needed.

    An observer can end the run, or change nothing: what it is given are copies. An exception stops the run, and names
    the observer.
    """

    def run_started(self, config: Mapping[str, Any]) -> None:
        """Before step 0."""

    def groups_scored(self, step: int, groups: Sequence[Group]) -> None:
        """After scoring, before filters."""

    def step_finished(self, step: int, metrics: Mapping[str, float]) -> str | None:
        """After the step's metrics are written.

        Returns:
            None to go on, else why the run should end: it saves a checkpoint and ends as if this had been its last
            step, with exit status 0.
        """
        return None

    def run_finished(self, reason: str) -> None:
        """At the end: `done`, `observer <name>: <its reason>`, `interrupted` or the first line of the error."""
