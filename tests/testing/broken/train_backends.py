"""Training backends: `Good`, and others that are wrong in one way. The docstring says how, and which test finds it."""

from dataclasses import replace

import numpy as np
import torch

from vime_core.testing.trainer import OUTPUT, BigramTrainer


class Good(BigramTrainer):
    """Each token from the one before."""


class TwoRanks(Good):
    """test_one_rank_is_the_whole_data_parallel_group: claims to be one of two."""

    def data_parallel(self):
        return 0, 2


class FirstTokenToo(Good):
    """test_log_probs_have_the_shape_of_the_batch: a log-prob for a token that nothing comes before."""

    def logprobs(self, micro_batches, *, reference=False):
        return [found - 1 for found in super().logprobs(micro_batches, reference=reference)]


class DoublePrecision(Good):
    """test_log_probs_have_the_shape_of_the_batch: float64."""

    def logprobs(self, micro_batches, *, reference=False):
        return [found.astype(np.float64) for found in super().logprobs(micro_batches, reference=reference)]


class SeesTheNeighbours(Good):
    """test_a_sequence_has_its_own_log_probs_in_any_batch: mixes packed sequences."""

    def logprobs(self, micro_batches, *, reference=False):
        found = super().logprobs(micro_batches, reference=reference)
        return [np.where(tokens == 0, tokens, tokens - 0.01 * len(tokens)).astype(np.float32) for tokens in found]


class NoTemperature(Good):
    """test_the_temperature_divides_the_logits: log-probs at temperature 1."""

    def __init__(self, context):
        super().__init__(replace(context, temperature=1.0))


class PaddedVocabulary(Good):
    """test_the_temperature_divides_the_logits: padding of the vocabulary takes part in the softmax."""

    def start(self):
        super().start()
        weight = self._weights[OUTPUT].data
        self._weights[OUTPUT].data = torch.cat([weight, weight[:38]])


class ForgetsOutput(Good):
    """test_it_starts_with_the_weights_of_the_folder: hands out all tensors but one."""

    def weights(self):
        return ((name, tensor) for name, tensor in super().weights() if name != OUTPUT)


class OwnWeights(Good):
    """test_it_starts_with_the_weights_of_the_folder: initialises the model anew."""

    def start(self):
        super().start()
        for weight in self._weights.values():
            torch.nn.init.normal_(weight)


class Transposed(Good):
    """test_it_starts_with_the_weights_of_the_folder: a view that is not contiguous."""

    def weights(self):
        return ((name, tensor.T.contiguous().T) for name, tensor in super().weights())


class Climbs(Good):
    """test_an_update_makes_what_was_rewarded_more_likely: adds the gradient."""

    def update(self, batch, algorithm):
        before = {name: weight.detach().clone() for name, weight in self._weights.items()}
        report = super().update(batch, algorithm)
        with torch.no_grad():
            for name, weight in self._weights.items():
                weight.copy_(2 * before[name] - weight)
        return report


class Frozen(Good):
    """test_an_update_makes_what_was_rewarded_more_likely: an update that changes nothing."""

    def update(self, batch, algorithm):
        before = {name: weight.detach().clone() for name, weight in self._weights.items()}
        report = super().update(batch, algorithm)
        for name, weight in self._weights.items():
            weight.data = before[name]
        return report


class LogprobsAfter(Good):
    """test_the_report_of_an_update_holds_the_log_probs_before_it: those after the step."""

    def update(self, batch, algorithm):
        report = super().update(batch, algorithm)
        return replace(report, logprobs=self.logprobs(batch.micro_batches))


class DividesByTokens(Good):
    """test_micro_batches_change_nothing: divides by the tokens of each micro-batch."""

    def update(self, batch, algorithm):
        return super().update(replace(batch, denominator=float(len(batch.micro_batches[0].token_ids))), algorithm)


class LastMicroBatchOnly(Good):
    """test_micro_batches_change_nothing: keeps the gradient of one micro-batch."""

    def update(self, batch, algorithm):
        return super().update(replace(batch, micro_batches=batch.micro_batches[-1:]), algorithm)


class MovingReference(Good):
    """test_the_reference_stays_where_the_run_started: the reference is the policy itself."""

    def start(self):
        super().start()
        self._reference = self._weights


class ForgetsOnLoad(Good):
    """test_a_checkpoint_goes_on_as_if_nothing_had_happened: loads one tensor of all."""

    def load(self, folder):
        kept = self._weights[OUTPUT].data
        super().load(folder)
        self._weights[OUTPUT].data = kept


class LosesWeightsAsleep(Good):
    """test_sleep_and_wake_change_nothing: wakes up with zeros."""

    def sleep(self):
        for weight in self._weights.values():
            weight.data = torch.zeros_like(weight)


class NoSleep(Good):
    """test_the_component_has_the_methods_of_its_kind: no `sleep`."""

    sleep = None
