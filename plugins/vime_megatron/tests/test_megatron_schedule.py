from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vime_megatron.config import MegatronConfig
from vime_megatron.schedule import learning_rate


def rates(total: int, **settings: object) -> list[float]:
    config = MegatronConfig(**settings)  # type: ignore[arg-type]
    return [learning_rate(update, total, config) for update in range(total)]


def test_constant() -> None:
    assert rates(3, lr=0.5) == [0.5, 0.5, 0.5]


def test_warmup_rises_linearly_from_zero() -> None:
    assert rates(6, lr=1.0, lr_warmup_steps=4) == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_linear_ends_at_the_minimum() -> None:
    expected = [0.5, 1.0, 1.0, 0.7, 0.4, 0.1]
    assert rates(6, lr=1.0, lr_min=0.1, lr_schedule="linear", lr_warmup_steps=2) == pytest.approx(expected)


def test_cosine_ends_at_the_minimum() -> None:
    expected = [0.2 + 0.8 * (1 + math.cos(math.pi * k / 4)) / 2 for k in range(5)]
    assert rates(5, lr=1.0, lr_min=0.2, lr_schedule="cosine") == pytest.approx(expected)


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_the_last_rate_stays_past_the_end(schedule: str) -> None:
    config = MegatronConfig(lr=1.0, lr_min=0.1, lr_schedule=schedule)
    assert learning_rate(9, 10, config) == pytest.approx(learning_rate(500, 10, config))


@given(
    total=st.integers(1, 60),
    warmup=st.integers(0, 80),
    schedule=st.sampled_from(["constant", "linear", "cosine"]),
)
def test_rates_lie_between_zero_and_the_peak_and_fall_after_the_warmup(total: int, warmup: int, schedule: str) -> None:
    found = rates(total, lr=2.0, lr_min=0.5, lr_schedule=schedule, lr_warmup_steps=warmup)
    assert all(0.0 < rate <= 2.0 for rate in found)
    rising, falling = found[:warmup], found[warmup:]
    assert rising == sorted(rising)
    assert falling == sorted(falling, reverse=True)
    assert all(rate >= 0.5 for rate in falling)
