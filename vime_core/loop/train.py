"""One training run, from a composed configuration to its end."""

from __future__ import annotations

import logging
import os
import socket
from typing import TYPE_CHECKING

from vime_core.cluster.calls import first_line
from vime_core.cluster.limits import raise_open_files
from vime_core.log import log_to
from vime_core.loop.colocated import ColocatedLoop
from vime_core.loop.heap import heap_left_alone
from vime_core.loop.interrupts import terminated_like_interrupted
from vime_core.loop.parts import started
from vime_core.loop.validate import checked_inputs
from vime_core.models.fingerprint import model_fingerprint
from vime_core.run.report import DONE, ENDED, FAILED, INTERRUPTED
from vime_core.run.resume import open_run
from vime_core.version import __version__

if TYPE_CHECKING:
    from vime_core.config.composed import ComposedConfig
    from vime_core.loop.parts import Parts
    from vime_core.run.resume import OpenRun

log = logging.getLogger(__name__)


def run(composed: ComposedConfig) -> int:
    """Train; returns the exit status.

    Raises:
        VimeError: the first cause of a run that could not start or go on.
        KeyboardInterrupt: after Ctrl-C or SIGTERM, once everything has ended.
    """
    inputs = checked_inputs(composed)
    raise_open_files()
    opened = open_run(inputs.config, composed.tree, model_fingerprint(inputs.model.path), inputs.check_state)
    with log_to(opened.folder.log_file, "driver"), terminated_like_interrupted():
        log.info("vime %s starts as process %d on %s", __version__, os.getpid(), socket.gethostname())
        end = INTERRUPTED
        try:
            with started(inputs, opened) as parts, heap_left_alone():
                end = _loop(parts, opened, composed)
        except Exception as error:
            end = FAILED
            log.exception("the run failed: %s", first_line(error))
            raise
        finally:
            _clean(opened)
            log.info("%s%s", ENDED, end)
            opened.folder.unlock()
    return 0


def _clean(opened: OpenRun) -> None:
    """What a failed save left must not keep a full disk full; resuming cleans too, so this must not hide a cause."""
    try:
        opened.checkpoints.clean()
    except OSError as error:
        log.warning("cannot remove a half-written checkpoint from %s: %s", opened.folder.checkpoints, error)


def _loop(parts: Parts, opened: OpenRun, composed: ComposedConfig) -> str:
    """Train; returns `DONE`, or which observer ended the run and why."""
    reason = INTERRUPTED
    try:
        parts.reporter.run_started(composed.tree)
        with parts.vigil.first_cause():
            ColocatedLoop(parts).run(opened.checkpoint)
        reason = parts.reporter.stop_reason or DONE
    except Exception as error:
        reason = first_line(error)
        raise
    finally:
        parts.reporter.run_finished(reason)
    return reason
