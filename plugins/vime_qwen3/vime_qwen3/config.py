"""Settings of the family."""

from __future__ import annotations

from dataclasses import dataclass

from vime_core.config.schema import ModelConfig


@dataclass(kw_only=True)
class Qwen3Config(ModelConfig):
    """A dense Qwen3 model; everything else follows from its `config.json`."""

    name: str = "qwen3"
    """The entry that is used."""


@dataclass(kw_only=True)
class Qwen3MoeConfig(ModelConfig):
    """A Qwen3 model with experts; everything else follows from its `config.json`."""

    name: str = "qwen3_moe"
    """The entry that is used."""
