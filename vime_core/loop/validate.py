"""What a run checks before it starts a process, without starting one and without writing anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vime_core.loop.inputs import prepare
from vime_core.models.fingerprint import model_fingerprint
from vime_core.run.resume import check_run

if TYPE_CHECKING:
    from vime_core.config.compose import ComposedConfig


def validate(composed: ComposedConfig) -> None:
    """Do what `vime train` does up to its run folder: `prepare` is the same call, `check_run` what `open_run` checks.

    Raises:
        UserError: one line that names what is wrong and what to do.
    """
    inputs = prepare(composed)
    check_run(inputs.config, composed.tree, model_fingerprint(inputs.model.path), inputs.check_state)
