"""What a run checks before it starts a process, without starting one and without writing anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vime_core.loop.inputs import prepare
from vime_core.loop.memory_check import check_memory
from vime_core.models.fingerprint import model_fingerprint
from vime_core.run.resume import check_run

if TYPE_CHECKING:
    from vime_core.config.composed import ComposedConfig
    from vime_core.loop.inputs import Inputs


def checked_inputs(composed: ComposedConfig) -> Inputs:
    """All of a run that is read, built and checked before it makes its folder; `vime train` and `validate` call it.

    Raises:
        UserError: one line that names what is wrong and what to do.
    """
    inputs = prepare(composed)
    check_memory(inputs)
    return inputs


def validate(composed: ComposedConfig) -> None:
    """Do what `vime train` does up to its run folder, and check what `open_run` checks then.

    Raises:
        UserError: one line that names what is wrong and what to do.
    """
    inputs = checked_inputs(composed)
    check_run(inputs.config, composed.tree, model_fingerprint(inputs.model.path), inputs.check_state)
