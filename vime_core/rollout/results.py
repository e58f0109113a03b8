"""How well a policy did on a held-out set."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from vime_core.errors import ConfigError, RewardError
from vime_core.rollout.estimates import Mean, mean_of_shares, pass_at_k
from vime_core.types import VERDICT_STATUSES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vime_core.types import Group, Sample


@dataclass(frozen=True, slots=True)
class EvalResult:
    """One held-out set, answered and judged."""

    name: str
    prompts: int
    samples_per_prompt: int
    accuracy: Mean
    """Mean over prompts of the share of correct samples among the judged ones."""
    pass_at: Mapping[int, Mean]
    """k -> mean over the prompts with at least k judged samples; see `vime_core.rollout.estimates.pass_at_k`."""
    verdicts: Mapping[str, float]
    """Status -> share of all samples."""
    response_len_mean: float
    """Tokens that the policy chose."""
    truncated_ratio: float
    """Share of samples cut at the longest length."""

    def plain(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def choose_ks(samples: int, wanted: Sequence[int]) -> list[int]:
    """The k of pass@k: those that are wanted, else 1, 2, 4, ... and the number of samples.

    Raises:
        ConfigError: when one cannot be estimated from so many samples.
    """
    if not wanted:
        return sorted({*(2**power for power in range(samples.bit_length())), samples})
    unfit = [k for k in wanted if not 1 <= k <= samples]
    if unfit:
        raise ConfigError(f"pass@{unfit[0]} needs at least {unfit[0]} samples of a prompt, and there are {samples}")
    return sorted(set(wanted))


def eval_result(name: str, groups: Sequence[Group], samples_per_prompt: int, ks: Sequence[int]) -> EvalResult:
    """Sum up judged groups.

    Raises:
        RewardError: when no sample at all got a verdict on the policy.
    """
    samples = [sample for group in groups for sample in group.samples]
    counts = [(len(group.judged), sum(map(_is_correct, group.judged))) for group in groups if group.judged]
    if not counts:
        raise RewardError(f"evaluation {name}: none of {len(samples)} samples got a verdict on the policy")
    passes = {k: [pass_at_k(judged, correct, k) for judged, correct in counts if judged >= k] for k in ks}
    statuses = Counter(sample.verdict.status for sample in samples if sample.verdict is not None)
    return EvalResult(
        name=name,
        prompts=len(groups),
        samples_per_prompt=samples_per_prompt,
        accuracy=mean_of_shares([correct / judged for judged, correct in counts]),
        pass_at={k: mean_of_shares(values) for k, values in passes.items() if values},
        verdicts={status: statuses[status] / len(samples) for status in VERDICT_STATUSES},
        response_len_mean=float(np.mean([int(sample.loss_mask.sum()) for sample in samples])),
        truncated_ratio=float(np.mean([sample.finish_reason == "length" for sample in samples])),
    )


def _is_correct(sample: Sample) -> bool:
    return sample.verdict is not None and sample.verdict.status == "correct"
