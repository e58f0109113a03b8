from __future__ import annotations

import gc
from pathlib import Path
from typing import Any


def test_backends_that_are_closed_leave_no_threads(model: Any, start: Any) -> None:
    """The groups of Megatron have threads; those of one backend may stay until the next one takes their place."""

    def threads() -> int:
        gc.collect()
        return len(list(Path("/proc/self/task").iterdir()))

    start(model)
    begin = threads()
    for _ in range(3):
        start(model)
    assert threads() <= begin


def test_a_backend_may_be_closed_twice(model: Any, start: Any) -> None:
    backend = start(model)
    backend.close()
    backend.close()
