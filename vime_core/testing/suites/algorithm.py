"""Conformance of algorithms."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from vime_core.plugins.interfaces import Algorithm, Needs
from vime_core.testing.contract import Nonconformance, require, require_equal
from vime_core.testing.losses import loss_inputs, poisoned, sequences
from vime_core.testing.prompts import make_prompt
from vime_core.testing.samples import make_sample
from vime_core.testing.suite import ComponentSuite, need
from vime_core.types import Group, Verdict

if TYPE_CHECKING:
    from vime_core.plugins.interfaces import LossInputs, Metric
    from vime_core.types import Float64Array, TrainSample, VerdictStatus

TOLERANCE = 1e-4
"""Of float32 sums over some dozens of tokens."""


class AlgorithmSuite(ComponentSuite):
    """Tests of an algorithm: what it teaches must not depend on batching, and only on samples that were judged."""

    group = "algorithm"
    interface = Algorithm

    def test_needs_follow_from_the_settings(self) -> None:
        """The number of updates is the core's setting."""
        for updates in (1, 3):
            needs = self.build(self.config(updates_per_rollout=updates)).needs()
            require(isinstance(needs, Needs), f"needs must return Needs, not {needs!r}")
            require_equal(needs.updates_per_rollout, updates, "needs().updates_per_rollout")

    def test_advantages_are_one_float64_a_response_token(self) -> None:
        """And the mask is that of the sample, or less."""
        for train in self.advantages(groups()):
            length, where = (len(train.sample.response_ids),), f"sample {train.sample.key}"
            require_equal(train.advantages.shape, length, f"the shape of the advantages of {where}")
            require_equal(train.advantages.dtype, np.dtype(np.float64), f"the dtype of the advantages of {where}")
            require(bool(np.isfinite(train.advantages).all()), f"an advantage of {where} is not finite")
            require_equal(train.loss_mask.shape, length, f"the shape of the mask of {where}")
            added = train.loss_mask & ~train.sample.loss_mask
            require(not added.any(), f"the mask of {where} holds tokens that the policy did not choose")

    def test_samples_that_were_not_judged_teach_nothing(self) -> None:
        """Verdicts `timeout` and `error` are left out, also of the baseline."""
        everything, judged = groups(), groups()
        for group in judged:
            group.samples = group.judged
        found = _by_key(self.advantages(everything))
        silent = {sample.key for group in everything for sample in group.samples if not sample.is_judged}
        require(
            not silent & found.keys(), f"samples without a judgement are trained on: {sorted(silent & found.keys())}"
        )
        _require_same(_by_key(self.advantages(judged)), found, "without the samples that were not judged")

    def test_groups_are_found_by_id_and_may_differ_in_size(self) -> None:
        """Order and batching of the groups change nothing."""
        found = _by_key(self.advantages(groups()))
        _require_same(_by_key(self.advantages(groups()[::-1])), found, "with the groups in another order")
        alone = {key: value for group in groups() for key, value in _by_key(self.advantages([group])).items()}
        _require_same(alone, found, "with each group alone")

    def test_train_samples_are_in_the_order_of_the_groups(self) -> None:
        """Updates take whole groups, which must be together."""
        order = [sample.key for group in groups() for sample in group.samples]
        found = [order.index(train.sample.key) for train in self.advantages(groups())]
        require(found == sorted(found), "advantages must be in the order of `groups`, and of the samples in them")

    def test_groups_stay_as_they_are(self) -> None:
        """They are written to disk after the advantages."""
        given = groups()
        before = pickle.dumps(given)
        self.advantages(given)
        require(pickle.dumps(given) == before, "advantages changes the groups")

    def test_nothing_to_learn_is_no_error(self) -> None:
        """No groups, and groups without judged samples."""
        silent = [Group("a", make_prompt("a"), [_sample("a", 0, 0.0, "timeout"), _sample("a", 1, 0.0, "error")])]
        for given in ([], silent):
            require_equal(self.advantages(given), [], "the advantages of nothing")

    def test_the_denominator_counts_the_whole_update(self) -> None:
        """It depends on the masks alone, not on their order, and is 0 when there are none."""
        algorithm = self.make()
        lengths = np.array([4, 0, 7, 1], np.int64)
        value = algorithm.denominator(lengths)
        require(np.isfinite(value) and value > 0, f"the denominator of 12 tokens must be above 0, not {value}")
        require_equal(algorithm.denominator(lengths[::-1].copy()), value, "the denominator in another order")
        for nothing in (np.zeros(3, np.int64), np.zeros(0, np.int64)):
            require_equal(algorithm.denominator(nothing), 0, "the denominator of nothing")

    def test_the_loss_is_a_sum_over_sequences(self) -> None:
        """Micro-batches of any size add up to the same loss, gradient and metrics."""
        whole = self.loss_inputs()
        loss, gradient, metrics = self.evaluate(whole)
        parts = [self.evaluate(part) for part in sequences(whole)]
        _require_close(sum(part[0] for part in parts), loss, "the loss of the sequences one by one")
        _require_close(np.concatenate([part[1] for part in parts]), gradient, "their gradient")
        for name, (total, count) in metrics.items():
            _require_close(sum(part[2][name][0] for part in parts), total, f"the total of metric {name}")
            if count is not None:
                _require_close(sum(part[2][name][1] for part in parts), count, f"the count of metric {name}")

    def test_what_is_masked_has_no_influence(self) -> None:
        """Entries outside the mask may be nan, and get no gradient."""
        plain, bad = self.loss_inputs(), poisoned(self.loss_inputs())
        loss, gradient, _ = self.evaluate(plain)
        other, other_gradient, metrics = self.evaluate(bad)
        require(bool(np.isfinite(other)), "a masked entry that is nan makes the loss nan; select with torch.where")
        _require_close(other, loss, "the loss with nan outside the mask")
        require(bool(np.isfinite(other_gradient).all()), "a masked entry that is nan makes a gradient nan")
        _require_close(other_gradient, gradient, "the gradient with nan outside the mask")
        require(not gradient[~plain.loss_mask.numpy()].any(), "masked tokens get a gradient")
        unmasked = [name for name, (total, _) in metrics.items() if not np.isfinite(total)]
        require(not unmasked, f"a masked entry that is nan makes metrics nan: {', '.join(unmasked)}")

    def test_an_empty_mask_gives_zero_that_can_be_differentiated(self) -> None:
        """A rank may get a micro-batch of padding only."""
        inputs = self.loss_inputs()
        loss, gradient, metrics = self.evaluate(replace(inputs, loss_mask=inputs.loss_mask & False))
        require_equal(loss, 0.0, "the loss of an empty mask")
        require(not gradient.any(), "an empty mask gives a gradient")
        bad = [name for name, (total, _) in metrics.items() if not np.isfinite(total)]
        require(not bad, f"an empty mask makes metrics nan: {', '.join(bad)}")

    def test_better_samples_become_more_likely(self) -> None:
        """On the policy that sampled, the gradient points where the advantage does."""
        inputs = self.loss_inputs()
        for sign in (1.0, -1.0):
            _, gradient, _ = self.evaluate(replace(inputs, advantages=inputs.advantages * 0 + sign))
            told = "positive advantages must raise" if sign > 0 else "negative advantages must lower"
            require(float(gradient.sum()) * sign < 0, f"{told} log-probs, but the gradient sums to {gradient.sum():g}")

    def test_metrics_have_plain_names(self) -> None:
        """They become `train/<name>`."""
        for name in self.evaluate(self.loss_inputs())[2]:
            require(name.isidentifier(), f"metric name {name!r} must be letters, digits and underscores")

    def advantages(self, given: list[Group]) -> list[TrainSample]:
        """Of a fresh algorithm, as the driver calls it."""
        found: list[TrainSample] = self.make().advantages(given)
        return found

    def loss_inputs(self) -> LossInputs:
        """What the trainer would supply for three sequences, one of them with holes in its mask."""
        need("torch")
        return loss_inputs(self.make().needs())

    def evaluate(self, inputs: LossInputs) -> tuple[float, Any, dict[str, tuple[float, float | None]]]:
        """(loss, [T] its gradient over the log-probs, metrics as plain numbers)."""
        logprobs = inputs.logprobs.detach().clone().requires_grad_()
        output = self.make().loss(replace(inputs, logprobs=logprobs))
        require(output.loss.dim() == 0, f"the loss must be a scalar, not of shape {tuple(output.loss.shape)}")
        require(output.loss.requires_grad, "the loss cannot be differentiated")
        output.loss.backward()
        if logprobs.grad is None:
            raise Nonconformance("the loss does not depend on the log-probs")
        metrics = {name: _plain(name, metric) for name, metric in output.metrics.items()}
        return float(output.loss.detach()), logprobs.grad.numpy(), metrics


def groups() -> list[Group]:
    """Groups of different sizes, with equal scores, samples that were not judged, cut, empty and all masked ones."""
    judged = {"a": [1.0, 0.0, 0.5], "b": [0.0, 0.0, 1.0, 1.0], "equal": [0.1, 0.1, 0.1], "lone": [2.0]}
    made = [
        Group(name, make_prompt(name), [_sample(name, index, score) for index, score in enumerate(scores)])
        for name, scores in judged.items()
    ]
    mixed = [
        _sample("mixed", 0, 1.0),
        _sample("mixed", 1, 1e9, "timeout"),
        _sample("mixed", 2, 0.0),
        _sample("mixed", 3, float("nan"), "error"),
        make_sample(3, 0, group="mixed", index=4, score=0.0, status="unparseable"),
        make_sample(3, 4, group="mixed", index=5, score=0.0, mask=[False] * 4),
        make_sample(3, 6, group="mixed", index=6, score=0.5, finish_reason="length"),
    ]
    return [*made, Group("mixed", make_prompt("mixed"), mixed)]


def _sample(group: str, index: int, score: float, status: VerdictStatus = "correct") -> Any:
    sample = make_sample(3, 4 + index, group=group, index=index)
    sample.verdict = Verdict(score, status)
    return sample


def _by_key(train: list[TrainSample]) -> dict[tuple[str, int], Float64Array]:
    return {item.sample.key: np.where(item.loss_mask, item.advantages, 0.0) for item in train}


def _require_same(
    found: dict[tuple[str, int], Float64Array], expected: dict[tuple[str, int], Float64Array], when: str
) -> None:
    require(found.keys() == expected.keys(), f"{when} other samples are trained on")
    for key, advantages in expected.items():
        require(np.allclose(found[key], advantages, rtol=1e-9, atol=1e-12), f"{when} the advantage of {key} differs")


def _require_close(found: Any, expected: Any, what: str) -> None:
    require(np.allclose(found, expected, rtol=TOLERANCE, atol=TOLERANCE), f"{what} must be {expected}, not {found}")


def _plain(name: str, metric: Metric) -> tuple[float, float | None]:
    require(metric.total.dim() == 0, f"the total of metric {name} must be a scalar")
    return float(metric.total.detach()), None if metric.count is None else float(metric.count.detach())
