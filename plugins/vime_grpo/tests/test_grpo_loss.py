import math

import numpy as np
import pytest
import torch

from vime_core.plugins.interfaces import LossInputs
from vime_grpo.config import GRPOConfig
from vime_grpo.grpo import GRPO
from vime_grpo.losses import clipped_loss

LENGTHS = [5, 1, 4, 6, 3]
"""Tokens of each sequence; the first of each is its prompt, the last sequence is padding."""
UNMASKED = [[1, 2, 4], [], [3], [1, 2, 3, 4, 5], []]
AGGREGATIONS = [("token_mean", None), ("seq_mean", None), ("seq_mean_token_sum_norm", 7)]


def float64(values):
    return torch.tensor(values, dtype=torch.float64)


def inputs(*, scale=0.3, fill=math.nan):
    """One packed micro-batch in float64; everything outside the mask holds `fill`."""
    rng = np.random.default_rng(5)
    offsets = np.cumsum([0, *LENGTHS])
    mask = np.zeros(offsets[-1], bool)
    for start, positions in zip(offsets[:-1], UNMASKED, strict=True):
        mask[start + np.array(positions, int)] = True

    def tokens(values):
        return torch.tensor(np.where(mask, values, fill))

    old = -rng.random(len(mask)) - 0.5
    return LossInputs(
        logprobs=tokens(old + scale * rng.standard_normal(len(mask))).requires_grad_(),
        entropy=tokens(rng.random(len(mask))).requires_grad_(),
        loss_mask=torch.tensor(mask),
        advantages=tokens(rng.standard_normal(len(mask))),
        rollout_logprobs=tokens(old - 0.1 * rng.random(len(mask))),
        old_logprobs=tokens(old),
        ref_logprobs=tokens(old + 0.2 * rng.standard_normal(len(mask))),
        cu_seqlens=torch.tensor(offsets, dtype=torch.int32),
    )


def reference_token(config, values):
    """Loss of one token, from the formulas."""
    logprob, advantage = values["logprobs"], values["advantages"]
    old = {"trainer": values["old_logprobs"], "rollout": values["rollout_logprobs"]}[config.old_logprobs]
    ratio = math.exp(logprob - old)
    clipped = min(max(ratio, 1 - config.clip_ratio_low), 1 + config.clip_ratio_high)
    r = math.exp(values["ref_logprobs"] - logprob)
    kl = {"k1": -math.log(r), "k2": math.log(r) ** 2 / 2, "k3": r - 1 - math.log(r)}[config.kl_estimator]
    policy = -min(ratio * advantage, clipped * advantage)
    return policy + config.kl_coef * kl - config.entropy_coef * values["entropy"]


def reference_loss(config, batch):
    """(mean loss, denominator) of the micro-batch, sequence by sequence in plain Python."""
    names = ("logprobs", "entropy", "advantages", "rollout_logprobs", "old_logprobs", "ref_logprobs")
    lists = {name: getattr(batch, name).tolist() for name in names}
    sequences = []
    for start, positions in zip(np.cumsum([0, *LENGTHS]), UNMASKED, strict=False):
        if positions:
            at = [start + position for position in positions]
            sequences.append([reference_token(config, {name: lists[name][t] for name in names}) for t in at])
    if config.loss_agg == "token_mean":
        tokens = [value for sequence in sequences for value in sequence]
        return math.fsum(tokens) / len(tokens), len(tokens)
    divide_by = [config.norm_tokens or len(sequence) for sequence in sequences]
    means = [math.fsum(sequence) / by for sequence, by in zip(sequences, divide_by, strict=True)]
    return math.fsum(means) / len(means), len(means)


def mask_lengths():
    return np.array([len(positions) for positions in UNMASKED])


def evaluate(batch, **settings):
    return GRPO(GRPOConfig(**settings)).loss(batch)


def mean(metric):
    return (metric.total / metric.count).item()


@pytest.mark.parametrize(("loss_agg", "norm_tokens"), AGGREGATIONS)
@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
@pytest.mark.parametrize("source", ["trainer", "rollout"])
def test_the_loss_equals_the_formula(loss_agg, norm_tokens, estimator, source):
    config = GRPOConfig(
        loss_agg=loss_agg,
        norm_tokens=norm_tokens,
        kl_coef=0.7,
        kl_estimator=estimator,
        entropy_coef=0.3,
        old_logprobs=source,
        updates_per_rollout=2,
    )
    batch = inputs()
    expected, denominator = reference_loss(config, batch)
    grpo = GRPO(config)
    assert grpo.denominator(mask_lengths()) == denominator
    assert grpo.loss(batch).loss.item() / denominator == pytest.approx(expected, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize(("loss_agg", "norm_tokens"), AGGREGATIONS)
def test_nothing_unmasked_has_no_denominator_and_a_zero_loss_on_the_graph(loss_agg, norm_tokens):
    batch = inputs()
    empty = torch.zeros_like(batch.loss_mask)
    batch = LossInputs(**{**{name: getattr(batch, name) for name in batch.__slots__}, "loss_mask": empty})
    settings = {"loss_agg": loss_agg, "norm_tokens": norm_tokens, "kl_coef": 1.0, "entropy_coef": 1.0}
    loss = evaluate(batch, **settings).loss
    assert loss.item() == 0.0
    (gradient,) = torch.autograd.grad(loss, batch.logprobs)
    assert not gradient.any()
    assert GRPO(GRPOConfig(loss_agg=loss_agg, norm_tokens=norm_tokens)).denominator(np.zeros(3, int)) == 0.0


@pytest.mark.parametrize("fill", [math.nan, math.inf, -math.inf, 1e300])
@pytest.mark.parametrize("settings", [{"updates_per_rollout": 2}, {"old_logprobs": "rollout"}, {}])
@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_masked_tokens_may_hold_anything(fill, settings, estimator):
    settings = {**settings, "kl_coef": 0.5, "kl_estimator": estimator, "entropy_coef": 0.5}
    clean, dirty = inputs(fill=0.0), inputs(fill=fill)
    expected, found = evaluate(clean, **settings), evaluate(dirty, **settings)
    assert found.loss.item() == expected.loss.item()
    assert {name: metric.total.item() for name, metric in found.metrics.items()} == {
        name: metric.total.item() for name, metric in expected.metrics.items()
    }
    expected.loss.backward()
    found.loss.backward()
    torch.testing.assert_close(dirty.logprobs.grad, clean.logprobs.grad, rtol=0, atol=0)
    torch.testing.assert_close(dirty.entropy.grad, clean.entropy.grad, rtol=0, atol=0)
    assert not dirty.logprobs.grad[~dirty.loss_mask].any()


def test_the_only_update_has_ratio_one_and_the_policy_gradient():
    batch = inputs()
    output = evaluate(batch)
    output.loss.backward()
    mask = batch.loss_mask
    assert mean(output.metrics["ratio"]) == 1.0
    assert mean(output.metrics["policy_kl"]) == 0.0
    assert mean(output.metrics["clip_fraction"]) == 0.0
    torch.testing.assert_close(batch.logprobs.grad[mask], -batch.advantages[mask], rtol=1e-15, atol=0)


def test_a_separate_pass_that_agrees_gives_the_same_first_update():
    reused, separate = inputs(), inputs(scale=0.0)
    same = LossInputs(**{**{name: getattr(reused, name) for name in reused.__slots__}, "logprobs": separate.logprobs})
    one, two = evaluate(same), evaluate(same, updates_per_rollout=2)
    assert one.loss.item() == pytest.approx(two.loss.item(), rel=1e-15)


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [
        (1.5, 1.0, -1.28),
        (1.5, -1.0, 1.5),
        (0.5, 1.0, -0.5),
        (0.5, -1.0, 0.8),
        (1.25, 1.0, -1.25),
        (0.9, -2.0, 1.8),
    ],
)
def test_clip_higher(ratio, advantage, expected):
    found = clipped_loss(float64(ratio), float64(advantage), 0.2, 0.28)
    assert found.item() == pytest.approx(expected, rel=1e-15)


def test_clipped_loss_gradcheck_away_from_the_kinks():
    log_ratio = float64([-0.9, -0.1, 0.05, 0.6] * 2).requires_grad_()
    advantages = float64([1.0, 0.5, 2.0, 1.5, -1.0, -0.5, -2.0, -1.5])
    assert torch.autograd.gradcheck(lambda x: clipped_loss(x.exp(), advantages, 0.2, 0.28), log_ratio)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
@pytest.mark.parametrize(("loss_agg", "norm_tokens"), AGGREGATIONS)
def test_the_whole_loss_passes_gradcheck(loss_agg, norm_tokens, estimator):
    config = GRPOConfig(
        loss_agg=loss_agg,
        norm_tokens=norm_tokens,
        kl_coef=0.7,
        kl_estimator=estimator,
        entropy_coef=0.3,
        updates_per_rollout=2,
    )
    batch = inputs(fill=0.0)
    rest = {name: getattr(batch, name) for name in batch.__slots__ if name not in ("logprobs", "entropy")}

    def loss(logprobs, entropy):
        return GRPO(config).loss(LossInputs(logprobs=logprobs, entropy=entropy, **rest)).loss

    assert torch.autograd.gradcheck(loss, (batch.logprobs, batch.entropy))


def test_metrics_are_token_means_of_the_unmasked_tokens():
    batch = inputs(scale=0.6)
    mask = batch.loss_mask
    output = evaluate(batch, updates_per_rollout=2, kl_coef=0.1, entropy_coef=0.1, loss_agg="seq_mean")
    log_ratio = (batch.logprobs - batch.old_logprobs)[mask].tolist()
    advantages = batch.advantages[mask].tolist()
    clipped = [
        (a > 0 and math.exp(x) > 1.28) or (a < 0 and math.exp(x) < 0.8)
        for x, a in zip(log_ratio, advantages, strict=True)
    ]
    assert 0 < sum(clipped) < len(clipped)
    assert mean(output.metrics["clip_fraction"]) == pytest.approx(sum(clipped) / len(clipped))
    assert mean(output.metrics["ratio"]) == pytest.approx(np.mean(np.exp(log_ratio)), rel=1e-12)
    policy_kl = [math.exp(x) - 1 - x for x in log_ratio]
    assert mean(output.metrics["policy_kl"]) == pytest.approx(np.mean(policy_kl), rel=1e-12)
    to_reference = (batch.ref_logprobs - batch.logprobs)[mask].tolist()
    assert mean(output.metrics["kl"]) == pytest.approx(np.mean([math.exp(x) - 1 - x for x in to_reference]), rel=1e-12)
    assert mean(output.metrics["entropy"]) == pytest.approx(batch.entropy[mask].mean().item(), rel=1e-12)
    assert all(not metric.total.requires_grad for metric in output.metrics.values())


def test_pg_loss_is_the_loss_less_its_other_terms():
    plain = evaluate(inputs())
    full = evaluate(inputs(), kl_coef=0.5, entropy_coef=0.5)
    assert plain.metrics["pg_loss"].count is None
    assert plain.metrics["pg_loss"].total.item() == plain.loss.item() == full.metrics["pg_loss"].total.item()
    assert full.loss.item() != plain.loss.item()
    assert plain.metrics.keys() == {"pg_loss", "clip_fraction", "ratio", "policy_kl"}


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"updates_per_rollout": 2}, "old_logprobs"),
        ({"kl_coef": 1.0}, "ref_logprobs"),
        ({"entropy_coef": 1}, "entropy"),
    ],
)
def test_an_input_that_is_needed_but_missing_is_named(settings, name):
    batch = inputs()
    without = LossInputs(**{**{field: getattr(batch, field) for field in batch.__slots__}, name: None})
    with pytest.raises(ValueError, match=f"the loss needs {name}"):
        evaluate(without, **settings)
