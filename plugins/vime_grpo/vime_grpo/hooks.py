"""Registration only; implementations are imported when chosen."""

from __future__ import annotations

from vime_core import hookimpl
from vime_core.plugins.entries import AlgorithmEntry
from vime_grpo.config import GRPOConfig


@hookimpl
def vime_algorithms() -> list[AlgorithmEntry]:
    """The algorithm `grpo`."""
    return [
        AlgorithmEntry(
            name="grpo",
            summary="Group-relative advantages, clipped policy-gradient loss, optional KL and entropy terms",
            config=GRPOConfig,
            factory="vime_grpo.grpo:GRPO",
            requires=("torch",),
        )
    ]
