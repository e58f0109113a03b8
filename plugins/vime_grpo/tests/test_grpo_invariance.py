"""What must not change the gradient: micro-batches, packing, padding, ranks and the order of samples."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vime_core.data.batching import attach, build_update
from vime_core.plugins.interfaces import LossInputs
from vime_core.testing.samples import make_sample
from vime_core.types import Group, Prompt, TrainSample
from vime_grpo.config import GRPOConfig
from vime_grpo.grpo import GRPO

VOCABULARY = 5
TABLES = torch.randn(3, VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(11), dtype=torch.float64)
CURRENT, OLD, REFERENCE = TABLES[0], TABLES[0] + 0.3 * TABLES[1], TABLES[0] + 0.5 * TABLES[2]
"""A policy is a table: row t gives the logits of what follows token t."""


def next_token(table, ids):
    """([L - 1] log-probs of ids[1:], [L - 1] entropies) of one sequence."""
    logprobs = table[ids[:-1]].log_softmax(-1)
    chosen = logprobs.gather(-1, ids[1:, None]).squeeze(-1)
    return chosen, -(logprobs.exp() * logprobs).sum(-1)


def response_logprobs(table, sample):
    """[R] float32, as a trainer returns them."""
    ids = torch.tensor(np.concatenate([sample.prompt_ids, sample.response_ids]))
    chosen, _ = next_token(table, ids)
    return chosen[len(sample.prompt_ids) - 1 :].numpy().astype(np.float32)


def loss_inputs(table, batch):
    """The forward pass of a trainer over one packed micro-batch, with nan at all that is not unmasked."""
    mask = torch.tensor(batch.loss_mask)
    previous = torch.tensor(batch.token_ids).roll(1)
    logprobs = table[previous].log_softmax(-1)
    chosen = logprobs.gather(-1, torch.tensor(batch.token_ids)[:, None]).squeeze(-1)
    entropy = -(logprobs.exp() * logprobs).sum(-1)

    def tokens(values):
        return torch.where(mask, torch.as_tensor(values).double(), torch.nan)

    return LossInputs(
        logprobs=tokens(chosen),
        entropy=tokens(entropy),
        loss_mask=mask,
        advantages=tokens(batch.advantages),
        rollout_logprobs=tokens(batch.rollout_logprobs),
        old_logprobs=tokens(batch.old_logprobs),
        ref_logprobs=tokens(batch.ref_logprobs),
        cu_seqlens=torch.tensor(batch.cu_seqlens),
    )


def packed_gradients(samples, algorithm, **options):
    """One [V, V] gradient a rank through vime's own packing; None when there is nothing to train on."""
    batches = build_update(samples, algorithm, **options)
    if batches is None:
        return None
    attach(
        batches,
        old=[response_logprobs(OLD, train.sample) for train in samples],
        ref=[response_logprobs(REFERENCE, train.sample) for train in samples],
    )
    gradients = []
    for batch in batches:
        table = CURRENT.clone().requires_grad_()
        for micro_batch in batch.micro_batches:
            (algorithm.loss(loss_inputs(table, micro_batch)).loss / batch.denominator).backward()
        gradients.append(table.grad)
    return gradients


def reference_gradient(samples, config):
    """The formulas sample by sample: nothing packed, padded or shared out."""
    table = CURRENT.clone().requires_grad_()
    total, tokens, sequences = torch.zeros((), dtype=torch.float64), 0, 0
    for train in samples:
        count = int(train.loss_mask.sum())
        if not count:
            continue
        sample = train.sample
        ids = torch.tensor(np.concatenate([sample.prompt_ids, sample.response_ids]))
        chosen, entropy = (values[len(sample.prompt_ids) - 1 :] for values in next_token(table, ids))
        old = sample.rollout_logprobs if config.old_logprobs == "rollout" else response_logprobs(OLD, sample)
        old = chosen.detach() if config.updates_per_rollout == 1 and config.old_logprobs == "trainer" else old
        advantages = torch.tensor(train.advantages.astype(np.float32)).double()
        ratio = (chosen - torch.as_tensor(old).double()).exp()
        clipped = ratio.clip(1 - config.clip_ratio_low, 1 + config.clip_ratio_high)
        log_r = torch.tensor(response_logprobs(REFERENCE, sample)).double() - chosen
        kl = {"k1": -log_r, "k2": log_r**2 / 2, "k3": log_r.exp() - 1 - log_r}[config.kl_estimator]
        per_token = torch.maximum(-ratio * advantages, -clipped * advantages)
        per_token = per_token + config.kl_coef * kl - config.entropy_coef * entropy
        scale = {"token_mean": 1, "seq_mean": count, "seq_mean_token_sum_norm": config.norm_tokens}[config.loss_agg]
        total = total + per_token[torch.tensor(train.loss_mask)].sum() / scale
        tokens, sequences = tokens + count, sequences + 1
    (total / (tokens if config.loss_agg == "token_mean" else sequences)).backward()
    return table.grad


@st.composite
def groups_of_samples(draw):
    """A live group, and others with empty responses, silent verdicts, truncated samples and masks of any kind."""
    live = [make_sample(2, 2 + i, group="live", index=i, score=0.3 * i, vocabulary=VOCABULARY) for i in range(3)]
    groups = [group_of(live)]
    for number in range(draw(st.integers(0, 3))):
        samples = []
        for index in range(draw(st.integers(1, 4))):
            response = draw(st.integers(0, 6))
            samples.append(
                make_sample(
                    draw(st.integers(1, 4)),
                    response,
                    group=f"g{number}",
                    index=index,
                    mask=draw(st.lists(st.booleans(), min_size=response, max_size=response)),
                    score=draw(st.sampled_from([0.0, 0.1, 0.6, 1.0])),
                    status=draw(st.sampled_from(["correct", "wrong", "timeout"])),
                    finish_reason=draw(st.sampled_from(["stop", "length"])),
                    vocabulary=VOCABULARY,
                )
            )
        groups.append(group_of(samples))
    return groups


def group_of(samples):
    group_id = samples[0].group_id
    return Group(group_id, Prompt(group_id, (), (1,), ""), samples)


options = st.fixed_dictionaries(
    {
        "updates_per_rollout": st.integers(1, 2),
        "old_logprobs": st.sampled_from(["trainer", "rollout"]),
        "kl_coef": st.sampled_from([0.5, 0.0]),
        "entropy_coef": st.sampled_from([0.2, 0.0]),
        "mask_truncated": st.booleans(),
        "drop_zero_variance": st.booleans(),
        "normalize_std": st.booleans(),
    }
)


def untaught(response, index):
    """A sample that an algorithm has masked altogether."""
    sample = make_sample(2, response, group="untaught", index=index, vocabulary=VOCABULARY)
    return TrainSample(sample, np.full(response, np.nan), np.zeros(response, np.bool_))


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
@pytest.mark.parametrize("loss_agg", ["token_mean", "seq_mean", "seq_mean_token_sum_norm"])
@settings(deadline=None, max_examples=40)
@given(
    groups=groups_of_samples(),
    options=options,
    max_tokens=st.integers(1, 40),
    ranks=st.integers(1, 3),
    pad_to_multiple=st.sampled_from([1, 4]),
    data=st.data(),
)
def test_the_gradient_is_that_of_the_formula_however_it_is_batched(
    loss_agg, estimator, groups, options, max_tokens, ranks, pad_to_multiple, data
):
    norm_tokens = 6 if loss_agg == "seq_mean_token_sum_norm" else None
    config = GRPOConfig(loss_agg=loss_agg, norm_tokens=norm_tokens, kl_estimator=estimator, **options)
    algorithm = GRPO(config)
    samples = [*algorithm.advantages(groups), untaught(0, 0), untaught(3, 1)]
    samples = data.draw(st.permutations(samples))
    gradients = packed_gradients(
        samples, algorithm, max_tokens=max_tokens, ranks=ranks, pad_to_multiple=pad_to_multiple
    )
    assert len(gradients) == ranks
    expected = reference_gradient(samples, config)
    assert expected.abs().max() > 1e-6
    torch.testing.assert_close(sum(gradients), expected, rtol=1e-12, atol=1e-13)


def four_samples(**changes):
    samples = [
        make_sample(2, 4 + index, index=index, score=float(index % 2), vocabulary=VOCABULARY) for index in range(4)
    ]
    return [replace(sample, **changes) if index == 3 else sample for index, sample in enumerate(samples)]


def build_one(algorithm, samples):
    batches = build_update(samples, algorithm, max_tokens=100, ranks=1)
    assert batches is not None
    return batches[0]


@pytest.mark.parametrize(
    ("loss_agg", "norm_tokens", "everything", "without_truncated"),
    [("token_mean", None, 22, 15), ("seq_mean", None, 4, 3), ("seq_mean_token_sum_norm", 8, 4, 3)],
)
def test_masked_truncated_samples_leave_the_denominator_too(loss_agg, norm_tokens, everything, without_truncated):
    samples = four_samples(finish_reason="length")
    config = GRPOConfig(loss_agg=loss_agg, norm_tokens=norm_tokens)
    kept, masked = GRPO(config), GRPO(replace(config, mask_truncated=True))
    assert build_one(kept, kept.advantages([group_of(samples)])).denominator == everything
    batch = build_one(masked, masked.advantages([group_of(samples)]))
    assert batch.denominator == without_truncated
    assert batch.token_count == 15


def test_dead_groups_dilute_the_denominator_unless_they_are_dropped():
    live, dead = four_samples(), [replace(sample, group_id="dead") for sample in four_samples()]
    for sample in dead:
        sample.verdict = replace(sample.verdict, score=0.1)
    groups = [group_of(live), group_of(dead)]
    kept, dropped = GRPO(GRPOConfig()), GRPO(GRPOConfig(drop_zero_variance=True))
    (diluted,) = packed_gradients(kept.advantages(groups), kept, max_tokens=100, ranks=1)
    (full,) = packed_gradients(dropped.advantages(groups), dropped, max_tokens=100, ranks=1)
    torch.testing.assert_close(2 * diluted, full, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("drop", [False, True])
def test_dead_groups_push_the_kl_unless_they_are_dropped(drop):
    dead = four_samples()
    for sample in dead:
        sample.verdict = replace(sample.verdict, score=0.1)
    algorithm = GRPO(GRPOConfig(kl_coef=0.5, drop_zero_variance=drop))
    gradients = packed_gradients(algorithm.advantages([group_of(dead)]), algorithm, max_tokens=100, ranks=1)
    if drop:
        assert gradients is None
    else:
        assert gradients[0].abs().max() > 1e-3
