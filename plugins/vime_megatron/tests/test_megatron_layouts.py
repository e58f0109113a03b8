"""A few layouts on two gloo ranks against one; `make layouts` compares them all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.ranks

CHECKED = (
    "dense TP2+SP",
    "dense PP2 uneven",
    "dense PP2 tied",
    "moe EP2 alltoall",
    "moe TP2+SP alltoall",
    "moe TP2+SP ETP2 allgather",
    "moe TP2+SP auxiliary loss",
    "moe EP2 grouped allgather",
    "moe TP2xEP2 ETP1 grouped",
    "fault: norms not marked, TP2+SP",
    "fault: two experts swapped, EP2",
    "fault: q and k heads transposed, TP2+SP",
    "fault: groups of experts shifted, EP2",
)


MOVED = ("dense TP2+SP to PP2 uneven", "dense PP2 to DP2, tied", "moe EP2 to TP2+SP", "moe bfloat16 TP2xEP2 to EP2")


@pytest.fixture(scope="module")
def parts(
    make_model: Callable[..., Any], make_context: Callable[..., Any], samples: list[Any], ranks_program: Any
) -> dict[str, Any]:
    """What `layouts.py` runs with."""
    return {
        "make_model": lambda changes: make_model(**changes),
        "make_context": make_context,
        "samples": samples,
        "program": ranks_program,
    }


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory, layouts: Any, parts: dict[str, Any]) -> dict[str, Any]:
    """Comparisons by name of the layout."""
    folder: Path = tmp_path_factory.mktemp("layouts")
    found = layouts.run([case for case in layouts.CASES if case.name in CHECKED], folder, **parts)
    return {row.case.name: row for row in found}


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory, layouts: Any, parts: dict[str, Any]) -> dict[str, Any]:
    """Runs that went on under another layout, by name."""
    folder: Path = tmp_path_factory.mktemp("moves")
    found = layouts.run_moves([move for move in layouts.MOVES if move.name in MOVED], folder, **parts)
    return {row.move.name: row for row in found}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", [name for name in CHECKED if not name.startswith("fault")])
def test_a_layout_is_one_rank(name: str, rows: dict[str, Any]) -> None:
    assert rows[name].exact, str(rows[name])


@pytest.mark.parametrize("name", [name for name in CHECKED if name.startswith("fault")])
def test_a_fault_is_caught(name: str, rows: dict[str, Any]) -> None:
    assert not rows[name].exact, str(rows[name])


def test_each_fault_is_caught_by_what_it_breaks(rows: dict[str, Any]) -> None:
    """Unmarked norms leave loss, log-probs and weights as they were: only the gradients tell."""
    norms = rows["fault: norms not marked, TP2+SP"]
    assert norms.bit_equal
    assert norms.loss < 1e-5
    assert norms.logprobs < 1e-5
    assert norms.gradient > 0.01
    assert "norm" in norms.worst
    for name in ("fault: two experts swapped, EP2", "fault: q and k heads transposed, TP2+SP"):
        assert not rows[name].bit_equal
        assert rows[name].logprobs > 1e-3
    shifted = rows["fault: groups of experts shifted, EP2"]
    assert shifted.bit_equal
    assert shifted.logprobs > 1e-3


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", MOVED)
def test_a_checkpoint_goes_on_under_another_layout(name: str, moved: dict[str, Any]) -> None:
    assert moved[name].exact, str(moved[name])
