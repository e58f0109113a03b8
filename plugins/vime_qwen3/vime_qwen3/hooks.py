"""Registration only; implementations are imported when chosen."""

from __future__ import annotations

from vime_core import hookimpl
from vime_core.plugins.entries import ModelEntry
from vime_qwen3.config import Qwen3Config, Qwen3MoeConfig


@hookimpl
def vime_models() -> list[ModelEntry]:
    """The families of this package."""
    return [
        ModelEntry(
            name="qwen3",
            summary="Qwen3, dense (0.6B to 32B)",
            config=Qwen3Config,
            factory="vime_qwen3.qwen3:Qwen3",
        ),
        ModelEntry(
            name="qwen3_moe",
            summary="Qwen3 with experts (30B-A3B, 235B-A22B)",
            config=Qwen3MoeConfig,
            factory="vime_qwen3.qwen3_moe:Qwen3Moe",
        ),
    ]
