"""Algorithms: `Good`, and others that are wrong in one way. The docstring says how, and which test finds it."""

from dataclasses import replace

import numpy as np
import torch

from vime_core.plugins.interfaces import LossOutput, Metric, Needs
from vime_core.testing.algorithms import PolicyGradient
from vime_core.types import TrainSample


class Good(PolicyGradient):
    """The score is the advantage."""

    def __init__(self, config):
        self.config = config

    def needs(self):
        return replace(super().needs(), updates_per_rollout=self.config.updates_per_rollout)


class ForgetsUpdates(Good):
    """test_needs_follow_from_the_settings: one update whatever `updates_per_rollout` is."""

    def needs(self):
        return Needs(False, False, False, False)


class OneNumberASample(Good):
    """test_advantages_are_one_float64_a_response_token: an advantage a sample, not a token."""

    def advantages(self, groups):
        return [TrainSample(t.sample, t.advantages[:1], t.loss_mask) for t in super().advantages(groups)]


class Float32Advantages(Good):
    """test_advantages_are_one_float64_a_response_token: single precision."""

    def advantages(self, groups):
        return [TrainSample(t.sample, t.advantages.astype(np.float32), t.loss_mask) for t in super().advantages(groups)]


class TrainsOnEverything(Good):
    """test_advantages_are_one_float64_a_response_token: a mask with tokens that the policy did not choose."""

    def advantages(self, groups):
        return [TrainSample(t.sample, t.advantages, np.ones_like(t.loss_mask)) for t in super().advantages(groups)]


class EpsilonOfTheDeviation(Good):
    """test_advantages_are_one_float64_a_response_token: divides by a deviation that may be 0 or nan."""

    def advantages(self, groups):
        made = []
        for group in groups:
            scores = np.array([sample.verdict.score for sample in group.judged])
            with np.errstate(all="ignore"):
                scaled = (scores - scores.sum() / max(len(scores), 1)) / np.sqrt(np.square(scores - scores[:1]).sum())
            for sample, score in zip(group.judged, scaled, strict=True):
                made.append(TrainSample(sample, np.full(len(sample.response_ids), score), sample.loss_mask))
        return made


class TimeoutsCountAsWrong(Good):
    """test_samples_that_were_not_judged_teach_nothing: verdicts `timeout` and `error` are trained on."""

    def advantages(self, groups):
        return [
            TrainSample(sample, np.zeros(len(sample.response_ids)), sample.loss_mask)
            for group in groups
            for sample in group.samples
        ]


class TimeoutsInTheBaseline(Good):
    """test_samples_that_were_not_judged_teach_nothing: a score that means nothing moves the baseline."""

    def advantages(self, groups):
        return [
            TrainSample(
                sample,
                np.full(len(sample.response_ids), sample.verdict.score - len(group.samples)),
                sample.loss_mask,
            )
            for group in groups
            for sample in group.judged
        ]


class BaselineOfTheBatch(Good):
    """test_groups_are_found_by_id_and_may_differ_in_size: compares samples of different prompts."""

    def advantages(self, groups):
        made = super().advantages(groups)
        scores = [train.sample.verdict.score for train in made]
        mean = sum(scores) / len(scores) if scores else 0.0
        return [TrainSample(train.sample, train.advantages - mean, train.loss_mask) for train in made]


class SortsByScore(Good):
    """test_train_samples_are_in_the_order_of_the_groups: best first, so that groups are torn apart."""

    def advantages(self, groups):
        return sorted(super().advantages(groups), key=lambda train: -train.sample.verdict.score)


class DropsFromTheGroups(Good):
    """test_groups_stay_as_they_are: removes samples from the groups it was given."""

    def advantages(self, groups):
        for group in groups:
            group.samples = group.judged
        return super().advantages(groups)


class NeedsGroups(Good):
    """test_nothing_to_learn_is_no_error: an empty step raises."""

    def advantages(self, groups):
        made = super().advantages(groups)
        made[0].advantages.sum()
        return made


class AtLeastOne(Good):
    """test_the_denominator_counts_the_whole_update: 1 where nothing is trained on."""

    def denominator(self, mask_lengths):
        return max(1.0, super().denominator(mask_lengths))


class DividesItself(Good):
    """test_the_loss_is_a_sum_over_sequences: a mean of the micro-batch, so that its size matters."""

    def loss(self, inputs):
        output = super().loss(inputs)
        return LossOutput(output.loss / inputs.loss_mask.sum().clamp(min=1), output.metrics)


class MeanMetrics(Good):
    """test_the_loss_is_a_sum_over_sequences: a metric that is a mean already."""

    def loss(self, inputs):
        output = super().loss(inputs)
        probability = output.metrics["probability"]
        mean = Metric(probability.total / probability.count.clamp(min=1), torch.ones(()))
        return LossOutput(output.loss, {**output.metrics, "probability": mean})


class MultipliesByTheMask(Good):
    """test_what_is_masked_has_no_influence: 0 * nan is nan."""

    def loss(self, inputs):
        loss = -(inputs.advantages * inputs.logprobs * inputs.loss_mask).sum()
        return LossOutput(loss, {})


class IgnoresTheMask(Good):
    """test_what_is_masked_has_no_influence: trains on the prompt."""

    def loss(self, inputs):
        return LossOutput(-(inputs.advantages * inputs.logprobs).sum(), {})


class MeanOfNothing(Good):
    """test_an_empty_mask_gives_zero_that_can_be_differentiated: the mean of an empty mask is nan."""

    def loss(self, inputs):
        chosen = inputs.logprobs[inputs.loss_mask]
        return LossOutput(-(inputs.advantages[inputs.loss_mask] * chosen).mean() * len(chosen), {})


class ConstantWhenEmpty(Good):
    """test_an_empty_mask_gives_zero_that_can_be_differentiated: a zero without a graph."""

    def loss(self, inputs):
        if not inputs.loss_mask.any():
            return LossOutput(torch.zeros(()), {})
        return super().loss(inputs)


class PushesDown(Good):
    """test_better_samples_become_more_likely: the sign of the loss is wrong."""

    def loss(self, inputs):
        output = super().loss(inputs)
        return LossOutput(-output.loss, output.metrics)


class SlashInNames(Good):
    """test_metrics_have_plain_names: a metric called `train/loss`."""

    def loss(self, inputs):
        output = super().loss(inputs)
        return LossOutput(output.loss, {"train/loss": Metric(output.loss.detach(), None)})
