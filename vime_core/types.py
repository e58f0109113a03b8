"""The data that flows through a run. Every field says its shape, unit and dtype.

Legend for shapes: P prompt tokens, R response tokens, N samples of a step, T packed tokens of one
micro-batch, S sequences of one micro-batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    IntArray = NDArray[np.int64]
    BoolArray = NDArray[np.bool_]
    Float32Array = NDArray[np.float32]
    Float64Array = NDArray[np.float64]

FinishReason = Literal["stop", "length", "abort"]
VerdictStatus = Literal["correct", "wrong", "unparseable", "timeout", "error"]

VERDICT_STATUSES: tuple[VerdictStatus, ...] = ("correct", "wrong", "unparseable", "timeout", "error")
"""All verdict statuses, in the order in which they are reported."""

SILENT_STATUSES: frozenset[VerdictStatus] = frozenset({"timeout", "error"})
"""Statuses that say nothing about the policy: such samples never enter a baseline or a loss."""

PARTS_KEY = "rewards"
"""Key of a sample's metadata under which the verdicts of several rewards are kept."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One task given to the policy."""

    id: str
    """Unique within its prompt source, stable over runs."""
    messages: tuple[Mapping[str, str], ...]
    """Chat messages (`role`, `content`); empty when the source gives tokens."""
    token_ids: tuple[int, ...]
    """[P] ids after the chat template, generation prompt included."""
    label: str
    """The reference answer that the reward compares with."""
    data_source: str = ""
    """Name of the data set the row came from."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Whatever else the row held; plain JSON values."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a reward says of one sample."""

    score: float
    """The reward. Meaningless when `status` is `timeout` or `error`."""
    status: VerdictStatus
    """`unparseable` is the policy's fault and scores as wrong; `timeout` and `error` are not."""
    extracted: str | None = None
    """The answer read from the response."""
    detail: str = ""
    """Why: one line for people."""


@dataclass(frozen=True, slots=True)
class VersionSpan:
    """Tokens `start <= i < end` of a response were sampled by one policy version."""

    version: int
    start: int
    end: int


@dataclass(slots=True)
class Sample:
    """One response to a prompt."""

    prompt_id: str
    group_id: str
    """Samples with one group id share a baseline."""
    index: int
    """Position within the group, from 0."""
    prompt_ids: IntArray
    """[P] token ids."""
    response_ids: IntArray
    """[R] token ids, the end-of-sequence token included when the policy produced it."""
    loss_mask: BoolArray
    """[R] True where the policy chose the token (False for tool output or injected text)."""
    rollout_logprobs: Float32Array
    """[R] natural log-probabilities under the policy that sampled, at the sampling temperature."""
    finish_reason: FinishReason
    policy_versions: tuple[VersionSpan, ...]
    """Covers [0, R) without gaps."""
    response_text: str = ""
    """The response decoded, special tokens removed."""
    verdict: Verdict | None = None
    metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def parts(self) -> Mapping[str, Mapping[str, Any]]:
        """`score` and `status` that each reward gave, by its name; empty unless there are several rewards."""
        parts: Mapping[str, Mapping[str, Any]] = self.metadata.get(PARTS_KEY, {})
        return parts

    @property
    def key(self) -> tuple[str, int]:
        """Identity within a step: (group id, index)."""
        return self.group_id, self.index

    @property
    def is_judged(self) -> bool:
        """True when the verdict says something about the policy."""
        return self.verdict is not None and self.verdict.status not in SILENT_STATUSES


def keep_parts(sample: Sample, verdicts: Mapping[str, Verdict]) -> None:
    """Set `sample.parts`: what each of several rewards said."""
    sample.metadata[PARTS_KEY] = {
        name: {"score": verdict.score, "status": verdict.status} for name, verdict in verdicts.items()
    }


@dataclass(slots=True)
class Group:
    """All samples of one prompt in one step."""

    id: str
    prompt: Prompt
    samples: list[Sample]

    @property
    def judged(self) -> list[Sample]:
        """Samples whose verdict may enter the baseline."""
        return [sample for sample in self.samples if sample.is_judged]


@dataclass(frozen=True, slots=True)
class TrainSample:
    """A sample with what the algorithm wants to teach it."""

    sample: Sample
    advantages: Float64Array
    """[R] one advantage a response token."""
    loss_mask: BoolArray
    """[R] the sample's mask, less what the algorithm leaves out."""


@dataclass(slots=True)
class MicroBatch:
    """Packed sequences of one forward pass on one rank.

    Arrays of length T are aligned at the *target*: entry t belongs to token t given the tokens before it in
    its own sequence. The first token of a sequence and all prompt and padding tokens have `loss_mask` False.
    """

    token_ids: IntArray
    """[T]"""
    position_ids: IntArray
    """[T] restart at 0 with each sequence."""
    cu_seqlens: NDArray[np.int32]
    """[S+1] offsets of the sequences, from 0 to T; a padding sequence, if any, is the last one."""
    sample_rows: IntArray
    """[S] row of each sequence in the step's list of train samples; -1 for padding."""
    loss_mask: BoolArray
    """[T]"""
    advantages: Float32Array
    """[T] 0 outside the mask."""
    rollout_logprobs: Float32Array
    """[T] 0 outside the response."""
    old_logprobs: Float32Array | None = None
    """[T] trainer log-probs of the policy before the first update of the step, at the sampling temperature."""
    ref_logprobs: Float32Array | None = None
    """[T] trainer log-probs of the reference policy."""


@dataclass(slots=True)
class UpdateBatch:
    """What one optimizer update trains on, for one data-parallel rank.

    Every rank has the same number of micro-batches and the same `denominator`.
    """

    micro_batches: list[MicroBatch]
    denominator: float
    """Global: the declared loss denominator over all ranks and micro-batches, > 0."""
    token_count: int
    """Global number of tokens with `loss_mask` True."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one response is sampled."""

    temperature: float
    top_p: float
    top_k: int
    """-1 turns it off."""
    max_tokens: int
    """Most response tokens."""
    stop_token_ids: tuple[int, ...]
    seed: int | None
    """Makes the sample repeatable; None leaves it to the engine."""


@dataclass(frozen=True, slots=True)
class Completion:
    """Token-in/token-out answer of a rollout backend."""

    token_ids: IntArray
    """[R]"""
    logprobs: Float32Array
    """[R] of the sampled tokens, at the sampling temperature."""
    finish_reason: FinishReason
    policy_versions: tuple[VersionSpan, ...]


@dataclass(frozen=True, slots=True)
class NodePlace:
    """Where a process of the run lives; plain data."""

    address: str
    """IP address to listen on: loopback when all of the run is on one host, else the node's own."""
    keeper: str
    """Address of the node's keeper, for `vime_core.cluster.keeper.KeeperClient`."""
    host: str = ""
    """`vime_core.cluster.hosts.memory_identity` there; empty when all of the run is on the driver's node."""


@dataclass(frozen=True, slots=True)
class EngineEndpoint:
    """How to reach one running engine, for sync strategies; plain data."""

    name: str
    url: str
    """Base URL of the engine's own server, not of the router."""
    key: str = field(repr=False)
    """The run's key: sent as `Authorization: Bearer <key>`."""
    host: str
    """Equal to another process's `vime_core.cluster.hosts.memory_identity()` just when both share /dev/shm."""
    devices: tuple[str, ...] = ()
    """Device UUIDs; empty on the CPU."""


@dataclass(frozen=True, slots=True)
class PushReport:
    """What a completed weight push moved."""

    version: int
    bytes: int
    seconds: float
    tensors: int
    checksums: Mapping[str, str]
    """Tensor name -> checksum of the bytes that every engine confirmed."""


@dataclass(frozen=True, slots=True)
class UpdateReport:
    """What one optimizer update did; the same on every rank."""

    metrics: Mapping[str, float]
    """Metric name without prefix, e.g. `loss`, `pg_loss`, `grad_norm`, `lr`."""
    logprobs: Sequence[Float32Array]
    """One [T] a micro-batch of this rank: the log-probs of the forward pass, before the step."""
