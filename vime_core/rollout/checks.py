"""What must hold of samples and verdicts before anything is computed from them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from vime_core.errors import EngineError, PluginError, RewardError
from vime_core.types import SILENT_STATUSES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vime_core.types import Group, Sample, Verdict


def check_group(group: Group, count: int) -> None:
    """One sample each for `count` sampling parameters, each with its place.

    Raises:
        PluginError: when the rollout function made something else.
    """
    if len(group.samples) != count:
        raise PluginError(
            f"the rollout function made {len(group.samples)} samples of prompt {group.prompt.id}, asked for {count}"
        )
    for index, sample in enumerate(group.samples):
        if (sample.prompt_id, sample.key) != (group.prompt.id, (group.id, index)):
            raise PluginError(
                f"the rollout function labelled sample {index} of group {group.id} as sample {sample.index} "
                f"of group {sample.group_id}, prompt {sample.prompt_id}"
            )


def check_sample(sample: Sample, policy_version: int, *, logprobs: bool = True) -> None:
    """A whole response of one policy version.

    Args:
        sample: as the rollout function returned it.
        policy_version: the version that every token must come from.
        logprobs: whether the log-probs mean something; they do not under greedy sampling.

    Raises:
        EngineError: names group, sample and fault.
    """
    fault = _fault(sample, policy_version, logprobs)
    if fault:
        raise EngineError(f"group {sample.group_id}, sample {sample.index}: {fault}")


def _fault(sample: Sample, policy_version: int, logprobs: bool) -> str | None:
    length = len(sample.response_ids)
    if sample.finish_reason == "abort":
        return f"aborted after {length} tokens, and nothing asked for that"
    if len(sample.loss_mask) != length:
        return f"{length} response tokens but a loss mask of {len(sample.loss_mask)}"
    if len(sample.rollout_logprobs) != length:
        return f"{length} response tokens but {len(sample.rollout_logprobs)} log-probs"
    if logprobs and not np.isfinite(sample.rollout_logprobs).all():
        return f"the log-prob of response token {int(np.argmin(np.isfinite(sample.rollout_logprobs)))} is not finite"
    position = 0
    for span in sample.policy_versions:
        if span.start != position or span.end < span.start:
            return f"policy versions do not cover the response: {sample.policy_versions}"
        if span.version != policy_version:
            return f"sampled by policy version {span.version}, must be {policy_version}: a weight push is missing"
        position = span.end
    if position != length:
        return f"policy versions cover {position} of {length} response tokens"
    return None


def check_verdicts(group: Group, verdicts: Sequence[Verdict]) -> None:
    """One verdict a sample, with a number where the verdict counts.

    Raises:
        RewardError: names group and sample.
    """
    if len(verdicts) != len(group.samples):
        raise RewardError(f"group {group.id}: {len(verdicts)} verdicts on {len(group.samples)} samples")
    for index, verdict in enumerate(verdicts):
        if verdict.status not in SILENT_STATUSES and not math.isfinite(verdict.score):
            raise RewardError(f"group {group.id}, sample {index}: the reward gave the score {verdict.score}")
