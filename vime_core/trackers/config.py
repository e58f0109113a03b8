"""Settings of the trackers."""

from __future__ import annotations

from dataclasses import dataclass

from vime_core.config.schema import ComponentConfig, option


@dataclass(kw_only=True)
class TensorBoardConfig(ComponentConfig):
    """Event files in `tensorboard/` of the run folder: `tensorboard --logdir outputs` shows all runs."""

    name: str = "tensorboard"
    """The entry that is used."""


@dataclass(kw_only=True)
class WandbConfig(ComponentConfig):
    """Weights & Biases; files in `wandb/` of the run folder, which `wandb sync` uploads later."""

    name: str = "wandb"
    """The entry that is used."""
    mode: str = option("offline", choices=("offline", "online", "disabled"))
    """`offline` writes files only, `online` uploads too and needs `wandb login`, `disabled` does nothing."""
    project: str = "vime"
    """Project that the run belongs to."""
    entity: str | None = None
    """User or team; the default of the login when null."""
    group: str | None = None
    """Runs with one group are shown together."""
    start_timeout_s: float = option(90.0, above=0)
    """Longest the start may take."""
