"""Waiting for Ray actors: with a deadline, and with the first cause as the error."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from vime_core.errors import DeadlineError, TrainerError, VimeError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import ray

    from vime_core.cluster.witness import Vital


NOBODY: Mapping[str, Vital] = {}


def gather(
    refs: Sequence[ray.ObjectRef],
    names: Sequence[str],
    *,
    what: str,
    deadline_s: float,
    vitals: Mapping[str, Vital] = NOBODY,
) -> list[Any]:
    """Results of `refs`, in order.

    Ranks wait for each other inside collectives, so the first to fail is looked for while the others still run.

    Args:
        refs: one reference a member.
        names: what to call each member in errors, e.g. `trainer rank 3`.
        what: the stage, e.g. `update`.
        deadline_s: seconds for all of them together.
        vitals: by name, the processes of members on this node: they tell how a member died, which Ray does not know.

    Raises:
        DeadlineError: names the members that did not answer.
        VimeError: the original error of the first member that failed.
        TrainerError: for any other exception or a death, with member and stage.
    """
    import ray

    pending = dict(zip(refs, names, strict=True))
    end = time.monotonic() + deadline_s
    while pending:
        left = end - time.monotonic()
        done, _ = ray.wait(list(pending), num_returns=1, timeout=max(left, 0))
        if not done:
            raise DeadlineError(f"{what}: no answer from {', '.join(pending.values())} within {deadline_s:g} s")
        for ref in done:
            name = pending.pop(ref)
            try:
                ray.get(ref)
            except ray.exceptions.RayError as error:
                raise explain(error, name=name, what=what, vital=vitals.get(name)) from error
    return list(ray.get(list(refs)))


def explain(error: Exception, *, name: str, what: str, vital: Vital | None = None) -> VimeError:
    """The one-line error for what a member raised; a `VimeError` crosses processes as it is."""
    import ray

    cause = getattr(error, "cause", None)
    if isinstance(cause, VimeError):
        return cause
    if isinstance(error, (ray.exceptions.ActorDiedError, ray.exceptions.ActorUnavailableError)):
        if vital is not None:
            return TrainerError(f"{name} {vital.end()} during {what}")
        return TrainerError(f"{name} died during {what}: {first_line(error)}")
    shown = cause if isinstance(cause, Exception) else error
    return TrainerError(f"{name} failed during {what}: {type(shown).__name__}: {first_line(shown)}")


def first_line(error: BaseException) -> str:
    """The first line of an exception's message that says something."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
