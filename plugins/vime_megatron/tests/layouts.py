"""Every layout against one rank: `python layouts.py` prints a table and fails when a row does.

A case trains a model three updates on ragged packed micro-batches. Compared with the same on one rank are loss and
log-probs, each parameter's gradient, the losses of the next two updates, and the exported weights with the checkpoint.
Cases with a fault must be caught.
"""

from __future__ import annotations

import math
import sys
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from vime_core.data.batching import build_update, unpack
from vime_core.models.stacked import open_weights
from vime_core.models.tensors import tensor_shapes
from vime_grpo.config import GRPOConfig
from vime_grpo.grpo import GRPO

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

DEADLINE_S = 540.0
MAX_TOKENS = 24
"""Of a micro-batch: several of unequal length on every rank."""

VALUE_BOUND = 1e-5
GRADIENT_BOUND = 1e-5
NEXT_LOSS_BOUND = 1e-4

DENSE = {"num_hidden_layers": 5, "vocab_size": 131}
"""Layers and vocabulary divide by nothing."""
TIED = {**DENSE, "tie_word_embeddings": True}
MOE = {"family": "qwen3_moe", "num_hidden_layers": 3, "vocab_size": 131}
GROUPED = {"moe_grouped_gemm": True}
"""Compared with one rank whose experts compute one after the other."""


@dataclass(frozen=True)
class Case:
    """One layout."""

    name: str
    model: dict[str, Any]
    settings: dict[str, Any] = field(default_factory=dict)
    world_size: int = 2
    fault: str | None = None
    """A call of `ranks_program.SABOTAGE` after the weights are loaded."""

    @property
    def reference(self) -> Case:
        """The same on one rank."""
        settings = {key: value for key, value in self.settings.items() if key == "moe_aux_loss"}
        return Case(f"one rank: {self.model} {settings}", self.model, settings, world_size=1)

    @property
    def data_parallel(self) -> int:
        """Replicas of the model."""
        ranks = self.settings.get("tensor_parallel", 1) * self.settings.get("pipeline_parallel", 1)
        return int(self.world_size // ranks)


def _tensor(size: int = 2, **more: Any) -> dict[str, Any]:
    return {"tensor_parallel": size, **more}


def _pipeline(**more: Any) -> dict[str, Any]:
    return {"pipeline_parallel": 2, **more}


UNEVEN = [2, 3]
ETP2 = {"expert_tensor_parallel": 2}
CASES = [
    Case("dense TP2+SP", DENSE, _tensor()),
    Case("dense TP2", DENSE, _tensor(sequence_parallel=False)),
    Case("dense PP2 uneven", DENSE, _pipeline(pipeline_layers=UNEVEN)),
    Case("dense PP2 tied", TIED, _pipeline()),
    Case("dense TP2+SP tied", TIED, _tensor()),
    Case("dense DP2", DENSE),
    Case("dense TP2+SP full recompute", DENSE, _tensor(recompute="full")),
    Case("dense PP2 selective recompute", DENSE, _pipeline(recompute="selective")),
    Case("dense TP2xPP2+SP", DENSE, _tensor(**_pipeline(pipeline_layers=UNEVEN)), 4),
    Case("dense DP2xTP2", DENSE, _tensor(), 4),
    Case("dense DP2xPP2 tied", TIED, _pipeline(), 4),
    Case("moe DP2", MOE),
    *(
        case
        for dispatcher in ("alltoall", "allgather")
        for case in (
            Case(f"moe EP2 {dispatcher}", MOE, {"expert_parallel": 2, "token_dispatcher": dispatcher}),
            Case(f"moe TP2+SP {dispatcher}", MOE, _tensor(token_dispatcher=dispatcher)),
            Case(f"moe TP2+SP ETP2 {dispatcher}", MOE, _tensor(expert_tensor_parallel=2, token_dispatcher=dispatcher)),
            Case(f"moe TP2xEP2 ETP1 {dispatcher}", MOE, _tensor(expert_parallel=2, token_dispatcher=dispatcher)),
            Case(f"moe PP2 {dispatcher}", MOE, _pipeline(token_dispatcher=dispatcher)),
            Case(f"moe PP2xEP2 {dispatcher}", MOE, _pipeline(expert_parallel=2, token_dispatcher=dispatcher), 4),
            Case(
                f"moe TP2xEP2 ETP2 {dispatcher}",
                MOE,
                _tensor(expert_parallel=2, expert_tensor_parallel=2, token_dispatcher=dispatcher),
                4,
            ),
            Case(
                f"moe DP2xTP2xEP2 ETP1 {dispatcher}",
                MOE,
                _tensor(expert_parallel=2, token_dispatcher=dispatcher),
                4,
            ),
        )
    ),
    Case("moe TP2xPP2xEP2+SP", MOE, _tensor(**_pipeline(expert_parallel=2)), 4),
    Case("moe TP2+SP auxiliary loss", MOE, _tensor(moe_aux_loss=0.3)),
    Case("moe PP2 allgather auxiliary loss", MOE, _pipeline(moe_aux_loss=0.3, token_dispatcher="allgather")),
    Case("moe EP2 full recompute", MOE, {"expert_parallel": 2, "recompute": "full"}),
    Case("moe DP2 grouped", MOE, GROUPED),
    Case("moe EP2 grouped alltoall", MOE, {"expert_parallel": 2, **GROUPED}),
    Case("moe EP2 grouped allgather", MOE, {"expert_parallel": 2, "token_dispatcher": "allgather", **GROUPED}),
    Case("moe EP2 grouped full recompute", MOE, {"expert_parallel": 2, "recompute": "full", **GROUPED}),
    Case("moe EP2 grouped selective recompute", MOE, {"expert_parallel": 2, "recompute": "selective", **GROUPED}),
    Case("moe TP2xEP4 ETP1 grouped, one expert each", MOE, _tensor(expert_parallel=4, **GROUPED), 4),
    Case("moe TP2xEP2 ETP1 grouped", MOE, _tensor(expert_parallel=2, **GROUPED)),
    Case("moe TP2+SP ETP2 grouped allgather", MOE, _tensor(**ETP2, token_dispatcher="allgather", **GROUPED)),
    Case("moe TP2xEP2 ETP2 grouped", MOE, _tensor(expert_parallel=2, **ETP2, **GROUPED), 4),
    Case("moe PP2xEP2 grouped", MOE, _pipeline(expert_parallel=2, **GROUPED), 4),
    Case("moe TP2xPP2xEP2+SP grouped", MOE, _tensor(**_pipeline(expert_parallel=2, **GROUPED)), 4),
    Case("fault: norms not marked, TP2+SP", DENSE, _tensor(), fault="unmark_norms"),
    Case("fault: two experts swapped, EP2", MOE, {"expert_parallel": 2}, fault="swap_experts"),
    Case("fault: q and k heads transposed, TP2+SP", DENSE, _tensor(), fault="transpose_heads"),
    Case("fault: groups of experts shifted, EP2", MOE, {"expert_parallel": 2, **GROUPED}, fault="shift_groups"),
]


@dataclass(frozen=True)
class Row:
    """How far a case is from one rank."""

    case: Case
    loss: float
    logprobs: float
    gradient: float
    worst: str
    """Parameter whose gradient is furthest."""
    next_losses: float
    bit_equal: bool

    @property
    def exact(self) -> bool:
        """Within all bounds; nan is in none."""
        return (
            self.loss <= VALUE_BOUND
            and self.logprobs <= VALUE_BOUND
            and self.gradient <= GRADIENT_BOUND
            and self.next_losses <= NEXT_LOSS_BOUND
            and self.bit_equal
        )

    @property
    def as_meant(self) -> bool:
        """Exact, or caught where there is a fault."""
        return self.exact != (self.case.fault is not None)

    def __str__(self) -> str:
        verdict = ("caught" if self.case.fault else "ok") if self.as_meant else "FAILED"
        return (
            f"{self.case.name:<42} {self.loss:9.1e} {self.logprobs:9.1e} {self.gradient:9.1e} {self.next_losses:9.1e}  "
            f"{'yes' if self.bit_equal else 'no':<5} {verdict:<7} {self.worst}"
        )


HEADER = f"{'layout':<42} {'loss':>9} {'log-probs':>9} {'gradient':>9} {'next':>9}  {'bits':<5} {'':<7} worst gradient"


@dataclass(frozen=True)
class Move:
    """A checkpoint written under one layout, and gone on from under another."""

    name: str
    before: Case
    after: Case
    bound: float = NEXT_LOSS_BOUND
    """Of the losses; bfloat16 rounds otherwise when matrices are shared out otherwise."""


def _move(name: str, model: dict[str, Any], before: dict[str, Any], after: dict[str, Any]) -> Move:
    return Move(name, Case(name, model, before), Case(name, model, after))


MOVES = [
    _move("dense TP2+SP to PP2 uneven", DENSE, _tensor(), _pipeline(pipeline_layers=UNEVEN)),
    _move("dense PP2 to DP2, tied", TIED, _pipeline(), {}),
    _move("dense DP2 to TP2+SP", DENSE, {}, _tensor()),
    _move("moe EP2 to TP2+SP", MOE, {"expert_parallel": 2}, _tensor()),
    _move("moe TP2xEP2 grouped to EP2", MOE, _tensor(expert_parallel=2, **GROUPED), {"expert_parallel": 2}),
    _move("moe TP2+SP ETP2 to PP2", MOE, _tensor(expert_tensor_parallel=2), _pipeline()),
    replace(
        _move(
            "moe bfloat16 TP2xEP2 to EP2",
            MOE,
            _tensor(expert_parallel=2, dtype="bfloat16"),
            {"expert_parallel": 2, "dtype": "bfloat16"},
        ),
        bound=0.02,
    ),
]


@dataclass(frozen=True)
class Moved:
    """How a run goes on under another layout."""

    move: Move
    bit_equal: bool
    """Whether the weights are those that were saved."""
    losses: float
    """Largest difference of the next two losses from those of the run that stayed: the optimizer's state counts."""

    @property
    def exact(self) -> bool:
        """Within all bounds; nan is in none."""
        return self.bit_equal and self.losses <= self.move.bound

    def __str__(self) -> str:
        verdict = "ok" if self.exact else "FAILED"
        return f"{self.move.name:<42} {self.losses:9.1e}  {'yes' if self.bit_equal else 'no':<5} {verdict}"


def run_moves(
    moves: Sequence[Move],
    folder: Path,
    *,
    make_model: Callable[[dict[str, Any]], Any],
    make_context: Callable[..., Any],
    samples: Sequence[Any],
    program: Any,
) -> list[Moved]:
    """Save, go on; load under the other layout, go on; all on two ranks."""
    job = {}
    for index, move in enumerate(moves):
        model = make_model(move.before.model)
        saved = folder / f"saved_{index}"
        first, second = (make_context(model, world_size=2, **case.settings) for case in (move.before, move.after))
        update, other = (_update(case, samples) for case in (move.before, move.after))
        job[move.name] = [
            (first, [update, update, ("weights",), ("save", saved), update, update]),
            (second, [("load", saved), ("weights",), other, other]),
        ]
    (stayed_and_moved, _) = program.run_ranks(folder, job, 2, deadline_s=DEADLINE_S)
    found = []
    for move in moves:
        stayed, moved = stayed_and_moved[move.name]
        losses = [abs(a.metrics["loss"] - b.metrics["loss"]) for a, b in zip(stayed[4:], moved[2:], strict=True)]
        found.append(Moved(move, _bit_equal(moved[1], stayed[2]), max(losses)))
    return found


def _update(case: Case, samples: Sequence[Any]) -> tuple[Any, ...]:
    """The call of an optimizer update, with one batch a rank."""
    algorithm = GRPO(GRPOConfig(entropy_coef=0.03))
    batches = build_update(samples, algorithm, max_tokens=MAX_TOKENS, ranks=case.data_parallel)
    assert batches is not None
    assert all(len({len(m.token_ids) for m in batch.micro_batches}) > 1 for batch in batches)
    return "update", [batches[index] for index in _data_ranks(case)], algorithm


def calls_of(case: Case, samples: Sequence[Any]) -> list[tuple[Any, ...]]:
    """What every rank does; lists hold one entry a rank."""
    update = _update(case, samples)
    fault = [] if case.fault is None else [(case.fault,)]
    logprobs = ("logprobs", [batch.micro_batches for batch in update[1]])
    return [*fault, ("weights",), logprobs, update, ("gradients",), update, update, ("data_parallel",)]


def _data_ranks(case: Case) -> list[int]:
    """Megatron numbers ranks tensor first, then data, then pipeline."""
    tensor = case.settings.get("tensor_parallel", 1)
    return [rank // tensor % case.data_parallel for rank in range(case.world_size)]


def compare(
    case: Case, samples: Sequence[Any], model: Any, one: Sequence[Any], results: Sequence[Sequence[Any]]
) -> Row:
    """Compare the results of all ranks with those of one.

    Args:
        case: the layout.
        samples: that were trained on.
        model: folder, geometry and tensor map.
        one: results of `calls_of` a single rank.
        results: the same, one list a rank.
    """
    skip = 0 if case.fault is None else 1
    found = [result[skip:] for result in results]
    data_ranks = _data_ranks(case)
    assert [result[-1] for result in found] == [(rank, case.data_parallel) for rank in data_ranks]
    _require_agreement(found, data_ranks)
    first = [found[data_ranks.index(rank)] for rank in range(case.data_parallel)]
    losses, expected = ([result[index].metrics["loss"] for index in (2, 4, 5)] for result in (found[0], one))
    gradients = {name: _error(found[0][3][name], gradient) for name, gradient in one[3].items()}
    worst = max(gradients, key=lambda name: math.inf if math.isnan(gradients[name]) else gradients[name])
    stored = dict(
        open_weights(model.path, model.geometry, model.tensor_map).load(tensor_shapes(model.geometry, model.tensor_map))
    )
    return Row(
        case=case,
        loss=abs(losses[0] - expected[0]),
        logprobs=max(
            _logprob_error(case, samples, [result[1] for result in first], one[1]),
            _logprob_error(case, samples, [result[2].logprobs for result in first], one[2].logprobs),
        ),
        gradient=gradients[worst],
        worst=worst,
        next_losses=max(abs(a - b) for a, b in zip(losses[1:], expected[1:], strict=True)),
        bit_equal=all(_bit_equal(result[0], stored) for result in found),
    )


def _require_agreement(found: Sequence[Sequence[Any]], data_ranks: Sequence[int]) -> None:
    """Every rank of a replica says the same."""
    for result, rank in zip(found, data_ranks, strict=True):
        spoken = found[data_ranks.index(rank)]
        assert result[2].metrics == found[0][2].metrics
        assert all(np.array_equal(a, b) for a, b in zip(result[1], spoken[1], strict=True))
        assert all(np.array_equal(a, b) for a, b in zip(result[2].logprobs, spoken[2].logprobs, strict=True))


def _error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / max(float(expected.norm()), 1e-6))


def _logprob_error(case: Case, samples: Sequence[Any], found: Sequence[Any], expected: Sequence[Any]) -> float:
    algorithm = GRPO(GRPOConfig())
    by_sample = []
    for ranks, values in ((case.data_parallel, [v for rank in found for v in rank]), (1, list(expected))):
        batches = build_update(samples, algorithm, max_tokens=MAX_TOKENS, ranks=ranks)
        assert batches is not None
        by_sample.append(unpack([m for batch in batches for m in batch.micro_batches], values, samples))
    return max(float(np.abs(a - b).max(initial=0.0)) for a, b in zip(*by_sample, strict=True))


def _bit_equal(found: dict[str, torch.Tensor], stored: dict[str, torch.Tensor]) -> bool:
    return list(found) == list(stored) and all(torch.equal(found[name], tensor) for name, tensor in stored.items())


def run(
    cases: Sequence[Case],
    folder: Path,
    *,
    make_model: Callable[[dict[str, Any]], Any],
    make_context: Callable[..., Any],
    samples: Sequence[Any],
    program: Any,
) -> list[Row]:
    """Run cases, one world of processes for each number of ranks."""
    models = {str(case.model): make_model(case.model) for case in cases}
    found: dict[tuple[int, str], list[Any]] = {}
    ones = {case.reference.name: case.reference for case in cases}
    for size in sorted({1, *(case.world_size for case in cases)}):
        chosen = list(ones.values()) if size == 1 else [case for case in cases if case.world_size == size]
        job = {
            case.name: [
                (make_context(models[str(case.model)], world_size=size, **case.settings), calls_of(case, samples))
            ]
            for case in chosen
        }
        world = folder / str(size)
        world.mkdir()
        results = program.run_ranks(world, job, size, deadline_s=DEADLINE_S)
        for case in chosen:
            found[size, case.name] = [result[case.name][0] for result in results]
    return [
        compare(
            case,
            samples,
            models[str(case.model)],
            found[1, case.reference.name][0],
            found[case.world_size, case.name],
        )
        for case in cases
    ]


def main(names: Sequence[str]) -> int:
    """Print the table of all cases, or of those whose name holds one of `names`."""
    import ranks_program

    import conftest

    cases = [case for case in CASES if not names or any(name in case.name for name in names)]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)

        def make_model(changes: dict[str, Any]) -> Any:
            path = Path(tempfile.mkdtemp(dir=folder))
            return conftest.write_model(path, changes)

        parts = {
            "make_model": make_model,
            "make_context": conftest.train_context,
            "samples": conftest.train_samples(),
            "program": ranks_program,
        }
        rows = run(cases, folder, **parts)
        print(HEADER, *rows, sep="\n")
        moves = [move for move in MOVES if not names or any(name in f"move {move.name}" for name in names)]
        moved = run_moves(moves, folder, **parts) if moves else []
        print(f"\n{'checkpoint of one layout under another':<42} {'next':>9}  bits", *moved, sep="\n")
    return 0 if all(row.as_meant for row in rows) and all(row.exact for row in moved) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
