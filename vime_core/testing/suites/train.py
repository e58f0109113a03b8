"""Conformance of training backends."""

from __future__ import annotations

import math
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, cast
from unittest import SkipTest

import numpy as np

from vime_core.accelerators.cpu import CpuAccelerator
from vime_core.config.schema import AcceleratorConfig
from vime_core.data.batching import build_update, pack
from vime_core.models.tensors import tensor_shapes
from vime_core.plugins.interfaces import TrainBackend, TrainContext
from vime_core.testing.algorithms import PolicyGradient
from vime_core.testing.contract import require, require_equal
from vime_core.testing.models import write_tiny_model
from vime_core.testing.samples import make_sample, make_train_sample
from vime_core.testing.suite import ComponentSuite, need, scratch
from vime_core.types import TrainSample

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from vime_core.plugins.entries import TrainBackendEntry
    from vime_core.testing.models import TinyModel
    from vime_core.types import Float32Array, MicroBatch, UpdateBatch

TOLERANCE = 2e-4
"""Of float32 log-probs and sums."""

SHAPES = ((3, 7), (5, 1), (4, 12), (1, 2), (6, 9))
"""(prompt, response) tokens of each sample."""


class TrainBackendSuite(ComponentSuite):
    """Tests of a training backend: one rank on the CPU, float32, with a tiny model."""

    group = "train"
    interface = TrainBackend

    def test_one_rank_is_the_whole_data_parallel_group(self) -> None:
        """Batches are addressed by it."""
        with self.started() as (backend, _):
            require_equal(tuple(backend.data_parallel()), (0, 1), "(rank, size) of the only rank")

    def test_log_probs_have_the_shape_of_the_batch(self) -> None:
        """float32, free of nan, never above 0, and 0 at the first token of a sequence."""
        with self.started() as (backend, model):
            batch = pack(samples(model), range(len(SHAPES)), pad_to_multiple=16)
            [found] = backend.logprobs([batch])
            require_equal(found.shape, batch.token_ids.shape, "the shape of the log-probs")
            require_equal(found.dtype, np.dtype(np.float32), "the dtype of the log-probs")
            require(bool(np.isfinite(found).all()), "a log-prob is not finite")
            require(bool((found <= 1e-6).all()), "a log-prob is above 0")
            require(not found[batch.cu_seqlens[:-1]].any(), "the first token of a sequence must have log-prob 0")

    def test_a_sequence_has_its_own_log_probs_in_any_batch(self) -> None:
        """Packed is unpacked: no sequence sees another."""
        with self.started() as (backend, model):
            given = samples(model)
            batch = pack(given, range(len(given)))
            [packed] = backend.logprobs([batch])
            alone = backend.logprobs([pack(given, [row]) for row in range(len(given))])
            _require_close(packed, np.concatenate(alone), "log-probs of packed sequences, against each alone,")

    def test_the_temperature_divides_the_logits(self) -> None:
        """At a very high one every token of the vocabulary is equally likely, and no token besides."""
        with self.started(temperature=1e6) as (backend, model):
            batch = pack(samples(model), range(len(SHAPES)))
            [found] = backend.logprobs([batch])
            expected = np.full(len(found), -math.log(model.geometry.vocab_size), np.float32)
            expected[batch.cu_seqlens[:-1]] = 0
            _require_close(found, expected, "log-probs at temperature 1e6")

    def test_it_starts_with_the_weights_of_the_folder(self) -> None:
        """And hands them out under the same names, whole, in the same shapes."""
        with self.started() as (backend, model):
            self.require_weights(backend, model)

    def test_an_update_makes_what_was_rewarded_more_likely(self) -> None:
        """By a gradient step over the whole update; the report tells of it."""
        with self.started() as (backend, model):
            given = [TrainSample(item.sample, np.ones_like(item.advantages), item.loss_mask) for item in samples(model)]
            update = self.update_of(given)
            before = self.mean_logprob(backend, update)
            for _ in range(3):
                report = backend.update(update, PolicyGradient())
            require(self.mean_logprob(backend, update) > before, "three updates made rewarded tokens less likely")
            for name in ("loss", "pg_loss", "grad_norm", "lr"):
                require(math.isfinite(report.metrics.get(name, math.nan)), f"the report has no finite metric {name}")
            changed = dict(_copied(backend))
            require(
                any(not np.array_equal(changed[name], value) for name, value in model.weights.items()),
                "three updates changed no weight",
            )

    def test_the_report_of_an_update_holds_the_log_probs_before_it(self) -> None:
        """One array for each micro-batch, and metrics divided once by the declared denominator."""
        with self.started() as (backend, model):
            update = self.update_of(samples(model), max_tokens=16)
            before = backend.logprobs(update.micro_batches)
            report = backend.update(update, PolicyGradient())
            require_equal(len(report.logprobs), len(before), "the number of log-prob arrays in the report")
            for found, expected in zip(report.logprobs, before, strict=True):
                _require_close(found, expected, "the log-probs in the report")
            pairs = zip(update.micro_batches, before, strict=True)
            total = -sum(float((batch.advantages * batch.loss_mask * tokens).sum()) for batch, tokens in pairs)
            _require_close(report.metrics["loss"], total / update.denominator, "metric loss")

    def test_micro_batches_change_nothing(self) -> None:
        """The same samples in one micro-batch or in several: the same loss, gradient norm and weights."""
        results = []
        for max_tokens in (4096, 16):
            with self.started() as (backend, model):
                report = backend.update(self.update_of(samples(model), max_tokens), PolicyGradient())
                results.append((report.metrics, dict(_copied(backend))))
        (one, weights), (several, other_weights) = results
        for name in ("loss", "pg_loss", "grad_norm", "probability"):
            _require_close(
                several.get(name, math.nan), one.get(name, math.nan), f"metric {name} of several micro-batches"
            )
        for name, value in weights.items():
            _require_close(other_weights[name], value, f"{name} after an update of several micro-batches")

    def test_the_reference_stays_where_the_run_started(self) -> None:
        """Updates do not reach it."""
        with self.started(keep_reference=True) as (backend, model):
            update = self.update_of(samples(model))
            before = backend.logprobs(update.micro_batches)
            backend.update(update, PolicyGradient())
            after = backend.logprobs(update.micro_batches)
            reference = backend.logprobs(update.micro_batches, reference=True)
            for found, expected in zip(reference, before, strict=True):
                _require_close(found, expected, "the reference's log-probs after an update")
            again = backend.logprobs(update.micro_batches)
            for found, expected in zip(again, after, strict=True):
                _require_close(found, expected, "the policy's log-probs after the reference was asked")

    def test_a_checkpoint_goes_on_as_if_nothing_had_happened(self) -> None:
        """Weights, optimizer and schedule: the update after it is the same."""
        with scratch() as folder:
            with self.started() as (backend, model):
                update = self.update_of(samples(model))
                backend.update(update, PolicyGradient())
                backend.save(folder)
                report = backend.update(update, PolicyGradient())
                expected = dict(_copied(backend))
            with self.started() as (backend, model):
                backend.load(folder)
                resumed = backend.update(update, PolicyGradient())
                for name in ("loss", "grad_norm", "lr"):
                    _require_close(resumed.metrics[name], report.metrics[name], f"metric {name} after a load")
                for name, value in _copied(backend):
                    _require_close(value, expected[name], f"{name} after a load and an update")

    def test_sleep_and_wake_change_nothing(self) -> None:
        """Engines generate in between."""
        with self.started() as (backend, model):
            update = self.update_of(samples(model))
            before = backend.logprobs(update.micro_batches)
            backend.sleep()
            backend.wake()
            for found, expected in zip(backend.logprobs(update.micro_batches), before, strict=True):
                _require_close(found, expected, "log-probs after sleep and wake")
            backend.update(update, PolicyGradient())

    def require_weights(self, backend: Any, model: TinyModel) -> None:
        """Every tensor of the folder, once, bit for bit."""
        found: dict[str, Float32Array] = {}
        for name, tensor in backend.weights():
            require(name not in found, f"weights gives {name} twice")
            require(tensor.is_contiguous(), f"{name} is not contiguous")
            found[name] = tensor.detach().cpu().numpy().copy()
        expected = tensor_shapes(model.geometry, model.tensor_map)
        differing = sorted(found.keys() ^ expected.keys())
        require(not differing, f"weights must have the names of the tensor map; these differ: {differing[:4]}")
        for name, value in model.weights.items():
            require(np.array_equal(found[name], value), f"{name} is not the tensor of the folder")

    def update_of(self, given: Sequence[TrainSample], max_tokens: int = 4096) -> UpdateBatch:
        """An update of one rank."""
        batches = build_update(given, PolicyGradient(), max_tokens=max_tokens, ranks=1)
        require(batches is not None, "the samples of the suite give no update")
        return (batches or [])[0]

    def mean_logprob(self, backend: Any, update: UpdateBatch) -> float:
        """Over all unmasked tokens."""
        found = backend.logprobs(update.micro_batches)
        pairs: list[tuple[MicroBatch, Float32Array]] = list(zip(update.micro_batches, found, strict=True))
        return sum(float(tokens[batch.loss_mask].sum()) for batch, tokens in pairs) / update.token_count

    @contextmanager
    def made(self) -> Iterator[Any]:
        """Not started."""
        need("torch")
        with scratch() as folder:
            yield self.build(self.context(write_tiny_model(folder)))

    @contextmanager
    def started(self, **fields: Any) -> Iterator[tuple[Any, TinyModel]]:
        """A backend and its model; closed twice at the end.

        Raises:
            SkipTest: for a component that does not train.
        """
        need("torch")
        if not cast("TrainBackendEntry", self.component().entry).trains:
            raise SkipTest("it does not train")
        with ExitStack() as stack:
            model = write_tiny_model(stack.enter_context(scratch()))
            context = self.context(model, **fields)
            stack.enter_context(single_rank(context))
            backend = self.build(context)
            stack.callback(backend.close)
            stack.callback(backend.close)
            backend.start()
            yield backend, model

    def context(self, model: TinyModel, **fields: Any) -> TrainContext:
        """For the only rank."""
        accelerator = CpuAccelerator(AcceleratorConfig())
        values: dict[str, Any] = {"temperature": 1.0, "keep_reference": False, **fields}
        return TrainContext(
            rank=0,
            world_size=1,
            config=self.config(dtype="float32", lr=1e-2),
            model_path=model.path,
            geometry=model.geometry,
            tensor_map=model.tensor_map,
            accelerator=accelerator,
            device=accelerator.device(0),
            total_updates=10,
            seed=0,
            **values,
        )


@contextmanager
def single_rank(context: TrainContext) -> Iterator[None]:
    """torch.distributed of this process alone, unless it is initialised already."""
    from torch import distributed

    if distributed.is_initialized():
        yield
        return
    store = distributed.HashStore()
    distributed.init_process_group(context.accelerator.torch_backend, store=store, rank=0, world_size=1)
    try:
        yield
    finally:
        distributed.destroy_process_group()


def samples(model: TinyModel) -> list[TrainSample]:
    """Several lengths, a hole in a mask."""
    made = []
    for index, (prompt, response) in enumerate(SHAPES):
        mask = [position != 2 or response < 6 for position in range(response)]
        sample = make_sample(
            prompt,
            response,
            group=f"group{index // 2}",
            index=index % 2,
            mask=mask,
            vocabulary=model.geometry.vocab_size,
        )
        made.append(make_train_sample(sample))
    return made


def _copied(backend: Any) -> Iterator[tuple[str, Float32Array]]:
    for name, tensor in backend.weights():
        yield name, tensor.detach().cpu().float().numpy().copy()


def _require_close(found: Any, expected: Any, what: str) -> None:
    if not np.allclose(found, expected, rtol=TOLERANCE, atol=TOLERANCE):
        difference = float(np.nanmax(np.abs(np.asarray(found, np.float64) - np.asarray(expected, np.float64))))
        require(False, f"{what} must agree within {TOLERANCE:g}; the largest difference is {difference:g}")
