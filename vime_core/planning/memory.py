"""What is in memory in each phase of a step, and whether it fits."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from vime_core.planning.activations import Micro, activation_bytes
from vime_core.planning.engine import engine_bytes
from vime_core.planning.shares import DTYPE_BYTES, rank_parameters, state_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vime_core.models.geometry import ModelGeometry, TensorRule
    from vime_core.planning.activations import ActivationBytes
    from vime_core.planning.engine import EngineBytes, EngineSettings
    from vime_core.planning.layout import TrainLayout
    from vime_core.planning.shares import StateBytes

GIB = 1 << 30
TRAINER_RESERVE = 2 * GIB
"""Device context, buffers of collectives and fragmentation of a trainer rank; the margin of vime's published script."""
ASLEEP = 1 * GIB
"""Device context and graphs of an engine that sleeps."""


@dataclass(frozen=True, slots=True)
class Request:
    """A run, in numbers."""

    geometry: ModelGeometry
    tensor_map: Sequence[TensorRule]
    layout: TrainLayout
    dtype: str
    micro_tokens: int
    """Tokens of the largest micro-batch."""
    chunk_tokens: int
    """Tokens whose logits exist at one time."""
    engine: EngineSettings
    memory: int
    """Bytes of one device, or of the host."""
    devices: int
    """Devices of the run; on the CPU all processes share one host."""
    colocated: bool
    shared_host: bool
    """Trainer ranks and engines are processes of one host, and none of them sleeps."""
    bucket: int
    """Bytes of weights that are on their way at one time in a push."""
    trainer_buffers: int = 0
    """Buffers for them on a trainer rank's device."""
    engine_buffers: int = 0
    """As many bytes as so many of these are in use on a device of an engine."""

    @property
    def buffer(self) -> int:
        """Most bytes of one of these buffers: a tensor that is larger than its share of the bucket travels alone."""
        if not self.trainer_buffers:
            return 0
        sizes = (math.prod(shape) for rule in self.tensor_map for shape in rule.hf_shapes)
        return max(self.bucket // self.trainer_buffers, max(sizes) * DTYPE_BYTES[self.dtype])


@dataclass(frozen=True, slots=True)
class Part:
    """One use of memory."""

    name: str
    bytes: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class Phase:
    """What one device, or the host, holds at one time."""

    name: str
    parts: tuple[Part, ...]

    @property
    def total(self) -> int:
        """Bytes of all parts."""
        return sum(part.bytes for part in self.parts)


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The estimate for one request."""

    request: Request
    phases: tuple[Phase, ...]
    parameters: int
    """Of the fullest trainer rank."""
    sequences: int
    """Longest sequences that an engine's KV cache holds at one time."""
    utilization_range: tuple[float, float] | None
    """Least and largest `gpu_memory_utilization`: for one sequence, and beside the trainer; None on the CPU."""

    @property
    def problems(self) -> tuple[str, ...]:
        """Why it does not fit; none when it does."""
        memory = self.request.memory
        told = [
            f"{phase.name} needs {gib(phase.total)} and there are {gib(memory)}"
            for phase in self.phases
            if phase.total > memory
        ]
        if self.sequences < 1 and self.request.engine.engines:
            told.append(f"the KV cache does not hold one sequence of {self.request.engine.longest} tokens")
        return tuple(told)

    @property
    def fits(self) -> bool:
        """Whether there is room in every phase."""
        return not self.problems


def gib(count: int) -> str:
    """Bytes as GiB."""
    return f"{count / GIB:.1f} GiB"


def plan_memory(request: Request) -> MemoryPlan:
    """Estimate every phase on the fullest device."""
    stages = [_Stage.of(request, stage) for stage in range(request.layout.pipeline)]
    engine = engine_bytes(request.geometry, request.tensor_map, request.engine)
    phases = _host(request, stages, engine) if request.shared_host else _device(request, stages, engine)
    return MemoryPlan(
        request=request,
        phases=phases,
        parameters=max(stage.parameters for stage in stages),
        sequences=_kv_cache(request, engine) // engine.sequence,
        utilization_range=None if request.shared_host else _range(request, stages, engine),
    )


@dataclass(frozen=True, slots=True)
class _Stage:
    """A trainer rank of one pipeline stage."""

    parameters: int
    states: StateBytes
    activations: ActivationBytes

    @classmethod
    def of(cls, request: Request, stage: int) -> _Stage:
        layout = request.layout
        held = rank_parameters(request.geometry, request.tensor_map, layout, stage)
        used = activation_bytes(
            request.geometry,
            layout,
            # Sequences of a micro-batch are padded to at most twice their tokens in attention.
            Micro(request.micro_tokens, 2 * request.micro_tokens),
            dtype=request.dtype,
            chunk_tokens=request.chunk_tokens,
            stage=stage,
            in_flight=layout.pipeline - stage,
            fused_norms=not request.shared_host,
        )
        return cls(held.total, state_bytes(held, layout, request.dtype), used)

    @property
    def resident(self) -> int:
        """Weights and optimizer, which stay while engines generate."""
        return self.states.weights + self.states.optimizer

    def held(self) -> tuple[Part, ...]:
        """From step to step."""
        return (
            Part("weights", self.states.weights),
            Part("gradients", self.states.gradients),
            Part("optimizer", self.states.optimizer),
        )

    def backward(self) -> tuple[Part, ...]:
        """On top, the most in a backward pass."""
        used = self.activations
        if used.peak == used.embedding:
            return (Part("embedding's gradient", used.embedding, f"activations before it {gib(used.saved)}"),)
        saved = Part("activations", used.saved)
        if used.head > used.layer:
            return saved, Part("logits chunk", used.head, f"one layer's backward pass {gib(used.layer)}")
        return saved, Part("one layer's backward pass", used.layer, f"logits chunk {gib(used.head)}")


def _device(request: Request, stages: Sequence[_Stage], engine: EngineBytes) -> tuple[Phase, ...]:
    # Kept from the first push on.
    buffers = _push_buffers(request.trainer_buffers * request.buffer)
    reserve = [*buffers, Part("context, collectives, fragmentation", TRAINER_RESERVE)]
    asleep = _beside_trainer(request, engine)
    backward = max(((*stage.held(), *stage.backward(), *reserve, *asleep) for stage in stages), key=_sum)
    # torch's AdamW takes the roots of all second moments at one time on a device.
    update = max(
        ((*s.held(), Part("roots of second moments", s.states.optimizer_step), *reserve, *asleep) for s in stages),
        key=_sum,
    )
    phases = [Phase("backward pass", backward), Phase("optimizer step", update)]
    if not request.engine.engines:
        return tuple(phases)
    running = _running(request, engine)
    if request.colocated:
        # The trainer gives its gradients back while engines generate; weights and optimizer stay on the device.
        weights, _, optimizer = max(stages, key=lambda stage: stage.resident).held()
        running = (weights, optimizer, *reserve, *running)
    arriving = request.engine_buffers * request.buffer
    return (*phases, Phase("generating", (*running, *_push_buffers(arriving, "engine's part of a push"))))


def _running(request: Request, engine: EngineBytes) -> tuple[Part, ...]:
    return (
        Part("engine weights", engine.weights),
        Part("KV cache", _kv_cache(request, engine)),
        Part("engine's working set", engine.working),
    )


def _beside_trainer(request: Request, engine: EngineBytes) -> tuple[Part, ...]:
    """What engines hold on the trainer's devices while it computes."""
    if not request.colocated or not request.engine.engines:
        return ()
    return (Part("sleeping engine", ASLEEP),) if request.engine.sleeps else _running(request, engine)


def _host(request: Request, stages: Sequence[_Stage], engine: EngineBytes) -> tuple[Phase, ...]:
    """All processes of a CPU run; torch's AdamW takes one tensor after the other there."""
    ranks, engines = request.layout.world_size, request.engine.engines
    fullest = max(((*stage.held(), *stage.backward()) for stage in stages), key=_sum)
    parts = [replace(part, bytes=ranks * part.bytes) for part in fullest]
    if engines:
        processes = engines * request.engine.tensor
        parts += [
            Part("engine weights", processes * engine.weights),
            Part("KV caches", processes * _kv_cache(request, engine)),
            *_push_buffers((request.trainer_buffers + processes * request.engine_buffers) * request.buffer),
        ]
    return (Phase("the whole run", tuple(parts)),)


def _push_buffers(size: int, name: str = "weight push buffers") -> list[Part]:
    return [Part(name, size)] if size else []


def _sum(parts: Sequence[Part]) -> int:
    return sum(part.bytes for part in parts)


def _kv_cache(request: Request, engine: EngineBytes) -> int:
    settings = request.engine
    if settings.kv_cache is not None:
        return settings.kv_cache
    if settings.utilization is not None:
        return max(0, int(settings.utilization * request.memory) - engine.weights - engine.working)
    # An engine without a setting takes what its sequences need, or what there is: at least one sequence.
    return engine.sequence * (1 if request.shared_host else settings.max_num_seqs)


def _range(request: Request, stages: Sequence[_Stage], engine: EngineBytes) -> tuple[float, float]:
    trainer = 0
    if request.colocated:
        buffers = (request.trainer_buffers + request.engine_buffers) * request.buffer
        trainer = max(stage.resident for stage in stages) + TRAINER_RESERVE + buffers
    least = (engine.weights + engine.working + engine.sequence) / request.memory
    return least, max(0.0, 1 - trainer / request.memory)
