"""Prompts for tests."""

from __future__ import annotations

from vime_core.types import Prompt


def make_prompt(name: str = "prompt", *, label: str = "1", token_ids: tuple[int, ...] = (5, 6, 7)) -> Prompt:
    """A prompt with an id, the answer it asks for, and its tokens."""
    return Prompt(
        id=name, messages=({"role": "user", "content": name},), token_ids=token_ids, label=label, data_source="tests"
    )
