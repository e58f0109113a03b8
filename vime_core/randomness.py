"""The global random generators of this process, Python's and numpy's: seeded at the start, kept in checkpoints."""

from __future__ import annotations

import random
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


def seed_process(seed: int) -> None:
    """Seed both generators."""
    random.seed(seed)
    np.random.seed(seed % 2**32)


def random_state() -> dict[str, Any]:
    """Their states as plain JSON values."""
    version, key, gauss = random.getstate()
    numpy: Any = np.random.get_state(legacy=False)
    return {
        "python": [version, list(key), gauss],
        "numpy": {**numpy, "state": {"key": numpy["state"]["key"].tolist(), "pos": int(numpy["state"]["pos"])}},
    }


@contextmanager
def random_state_kept() -> Iterator[None]:
    """What the block draws from them, and how it seeds them, is undone."""
    state = random_state()
    try:
        yield
    finally:
        restore_random_state(state)


def restore_random_state(state: Mapping[str, Any]) -> None:
    """Undo `random_state`."""
    version, key, gauss = state["python"]
    random.setstate((version, tuple(key), gauss))
    numpy = state["numpy"]
    np.random.set_state({**numpy, "state": {**numpy["state"], "key": np.array(numpy["state"]["key"], np.uint32)}})
