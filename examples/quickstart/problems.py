"""Sums of two two-digit numbers, most of which need a carry, and two ways to answer them."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

OPERANDS = range(10, 100)
CARRY_SHARE = 0.8
"""Share of the problems whose ones digits add up to ten or more; most of the others are left out for it."""
HELD_OUT = 512
"""Least number of held-out problems."""


@dataclass(frozen=True, order=True)
class Problem:
    """One sum."""

    left: int
    right: int

    @property
    def question(self) -> str:
        """What the user asks."""
        return f"{self.left}+{self.right}="

    @property
    def answer(self) -> int:
        """The sum."""
        return self.left + self.right

    @property
    def carries(self) -> bool:
        """Whether the ones digits add up to ten or more."""
        return self.left % 10 + self.right % 10 >= 10

    @property
    def careful_response(self) -> str:
        """Writes the ones down first: `7+5=12`, then the answer. The form is that of the reward `dapo_math`."""
        left, right = self.left % 10, self.right % 10
        return f"{left}+{right}={left + right}\nAnswer: {self.answer}"

    @property
    def careless_response(self) -> str:
        """Answers at once, and forgets the carry: 27+45 is 62."""
        return f"Answer: {self.answer - 10 if self.carries else self.answer}"

    def row(self) -> dict[str, Any]:
        """The problem in the schema of DAPO-Math-17k."""
        return {
            "data_source": "two_digit_addition",
            "prompt": [{"role": "user", "content": self.question}],
            "ability": "MATH",
            "reward_model": {"ground_truth": str(self.answer), "style": "rule"},
            "extra_info": {"index": self.question.rstrip("=")},
        }


def split(seed: int) -> tuple[list[Problem], list[Problem]]:
    """Training and held-out problems, each in a seeded order.

    a+b and b+a are always on the same side, so that no held-out problem can be answered by swapping.
    """
    generator = random.Random(seed)
    pairs = [Problem(left, right) for left in OPERANDS for right in OPERANDS if left <= right]
    carrying = [pair for pair in pairs if pair.carries]
    others = [pair for pair in pairs if not pair.carries]
    kept = round(len(carrying) * (1 - CARRY_SHARE) / CARRY_SHARE)
    chosen = carrying + generator.sample(others, kept)
    generator.shuffle(chosen)
    held_out: list[Problem] = []
    while len(held_out) < HELD_OUT:
        held_out += both_orders(chosen.pop())
    training = [problem for pair in chosen for problem in both_orders(pair)]
    generator.shuffle(training)
    return training, held_out


def both_orders(pair: Problem) -> list[Problem]:
    """a+b and b+a; one of them when they are the same."""
    return sorted({pair, Problem(pair.right, pair.left)})


def write_parquet(problems: Iterable[Problem], path: Path) -> None:
    """One row a problem, in the DAPO schema."""
    pq.write_table(pa.Table.from_pylist([problem.row() for problem in problems]), path)
