"""The driver's half of training over an in-process trainer whose log-probs are a table of token and position."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from vime_core.config.schema import SyncConfig, TrainConfig
from vime_core.errors import SyncError
from vime_core.loop.clock import StageClock
from vime_core.loop.probe import Probe
from vime_core.loop.training import Trainer, logprob_difference, summarise
from vime_core.plugins.interfaces import Needs
from vime_core.types import Completion, Prompt, Sample, TrainSample, UpdateReport, VersionSpan


def table(token_ids, positions):
    """A deterministic stand-in for a policy: any alignment mistake changes the value."""
    return (-(token_ids % 7 + 1) - positions / 100).astype(np.float32)


class TableGroup:
    """Plays the ranks; `shift` changes the policy with each update."""

    def __init__(self, ranks=1):
        self.data_parallel_size = ranks
        self.updates = []
        self.shift = 0.0

    def logprobs(self, micro_batches, *, reference=False):
        return [[self._values(m, 0.5 if reference else self.shift) for m in rank] for rank in micro_batches]

    def update(self, batches):
        self.updates.append(batches)
        reports = [
            UpdateReport(
                metrics={"loss": float(len(self.updates)), "lr": 0.1 * len(self.updates)},
                logprobs=[self._values(m, self.shift) for m in batch.micro_batches],
            )
            for batch in batches
        ]
        self.shift += 1.0
        return reports

    @staticmethod
    def _values(micro_batch, shift):
        return table(micro_batch.token_ids, micro_batch.position_ids) + np.float32(shift)


class TableAlgorithm:
    def __init__(self, needs):
        self._needs = needs

    def needs(self):
        return self._needs

    def denominator(self, mask_lengths):
        return float(mask_lengths.sum())


def make_sample(group, index, prompt, response, *, difference=0.0, mask=None):
    prompt, response = np.asarray(prompt), np.asarray(response)
    positions = np.arange(len(prompt), len(prompt) + len(response))
    sample = Sample(
        prompt_id=group,
        group_id=group,
        index=index,
        prompt_ids=prompt,
        response_ids=response,
        loss_mask=np.ones(len(response), dtype=bool),
        rollout_logprobs=table(response, positions) + np.float32(difference),
        finish_reason="stop",
        policy_versions=(VersionSpan(0, 0, len(response)),),
    )
    loss_mask = sample.loss_mask if mask is None else np.asarray(mask, dtype=bool)
    return TrainSample(sample=sample, advantages=np.ones(len(response)), loss_mask=loss_mask)


@pytest.fixture
def samples():
    rng = np.random.default_rng(0)
    return [
        make_sample(f"g{g}", i, rng.integers(1, 90, rng.integers(1, 9)), rng.integers(1, 90, rng.integers(1, 9)))
        for g in range(4)
        for i in range(3)
    ]


NO_NEEDS = Needs(old_logprobs=False, ref_logprobs=False, rollout_logprobs=False, entropy=False)


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("max_tokens", [1, 20, 1000])
def test_logprobs_come_back_to_their_samples(samples, ranks, max_tokens):
    trainer = Trainer(TableGroup(ranks), TableAlgorithm(NO_NEEDS), TrainConfig(max_tokens_per_device=max_tokens))
    for sample, values in zip(samples, trainer.logprobs(samples), strict=True):
        np.testing.assert_array_equal(values, sample.sample.rollout_logprobs)


def test_one_update_reports_the_difference_of_its_own_forward_pass(samples):
    group = TableGroup(2)
    metrics = Trainer(group, TableAlgorithm(NO_NEEDS), TrainConfig()).step(samples, StageClock())
    assert metrics == {
        "train/updates": 1.0,
        "train/train_rollout_logprob_abs_diff": 0.0,
        "train/loss": 1.0,
        "train/lr": 0.1,
    }


def test_old_and_reference_logprobs_reach_every_update(samples):
    group = TableGroup(1)
    needs = replace(NO_NEEDS, old_logprobs=True, ref_logprobs=True, updates_per_rollout=2)
    metrics = Trainer(group, TableAlgorithm(needs), TrainConfig()).step(samples, StageClock())
    assert len(group.updates) == 2
    for batches in group.updates:
        for micro_batch in batches[0].micro_batches:
            inside = micro_batch.loss_mask
            expected = table(micro_batch.token_ids, micro_batch.position_ids)[inside]
            # Old ones are from before the first update, though the policy has moved since.
            np.testing.assert_array_equal(micro_batch.old_logprobs[inside], expected)
            np.testing.assert_allclose(micro_batch.ref_logprobs[inside], expected + 0.5)
    assert metrics["train/loss"] == 1.5
    assert metrics["train/lr"] == pytest.approx(0.2)
    assert metrics["train/train_rollout_logprob_abs_diff"] == 0.0


def test_nothing_to_train_on_makes_no_update(samples):
    group = TableGroup(1)
    masked = [replace(s, loss_mask=np.zeros_like(s.loss_mask)) for s in samples]
    trainer = Trainer(group, TableAlgorithm(NO_NEEDS), TrainConfig())
    assert trainer.step(masked, StageClock()) == {"train/updates": 0.0}
    assert trainer.step([], StageClock()) == {"train/updates": 0.0}
    assert group.updates == []


def test_logprob_difference_is_a_mean_of_masked_means():
    first = make_sample("a", 0, [1, 2], [3, 4], difference=0.5, mask=[True, False])
    second = make_sample("a", 1, [1, 2], [3, 4, 5], difference=-1.0)
    silent = make_sample("a", 2, [1, 2], [3], difference=9.0, mask=[False])
    ours = [table(s.sample.response_ids, np.arange(2, 2 + len(s.sample.response_ids))) for s in (first, second, silent)]
    assert logprob_difference([first, second, silent], ours) == pytest.approx((0.5 + 1.0) / 2, abs=1e-6)
    assert logprob_difference([silent], ours[2:]) == 0.0


def test_summary_of_no_update():
    assert summarise([], None) == {"train/updates": 0.0}


class TableEngines:
    """Answers like engines that hold the table policy, each with its own error."""

    def __init__(self, errors, version=3):
        self.errors = errors
        self.version = version

    async def generate(self, token_ids, params, *, engine=None):
        ids = np.arange(5, 5 + params.max_tokens)
        positions = np.arange(len(token_ids), len(token_ids) + len(ids))
        return Completion(
            token_ids=ids,
            logprobs=table(ids, positions) + np.float32(self.errors[engine]),
            finish_reason="length",
            policy_versions=(VersionSpan(self.version, 0, len(ids)),),
        )


def check_probe(errors, *, dtype="float32", version=3, tolerance=None):
    prompt = Prompt(id="p", messages=(), token_ids=(1, 2, 3), label="")
    trainer = Trainer(TableGroup(2), TableAlgorithm(NO_NEEDS), TrainConfig())
    config = SyncConfig(probe_tolerance=tolerance)
    probe = Probe(config, dtype=dtype, prompt=prompt, temperature=1.0, seed=0, logprobs=trainer.logprobs)
    return asyncio.run(probe.check(TableEngines(errors, version), list(errors), 3))


def test_probe_accepts_engines_that_agree():
    assert check_probe({"engine 0": 0.0, "engine 1": 5e-5}) == pytest.approx(5e-5, abs=1e-6)
    assert check_probe({"engine 0": 0.05}, dtype="bfloat16") == pytest.approx(0.05, abs=1e-6)


@pytest.mark.parametrize("error", [2e-4, -3.0, float("nan")])
def test_probe_names_the_engine_that_differs(error):
    with pytest.raises(SyncError, match="version 3 engine 1 and the trainer differ"):
        check_probe({"engine 0": 0.0, "engine 1": error})


def test_probe_tolerance_can_be_set():
    with pytest.raises(SyncError, match=r"sync\.probe_tolerance"):
        check_probe({"engine 0": 5e-5}, tolerance=1e-5)


def test_probe_fits_into_engines_of_short_responses():
    """Engines are sized to the longest prompt and response: a longer probe would be refused."""
    asked = []

    class Engines(TableEngines):
        async def generate(self, token_ids, params, *, engine=None):
            asked.append(params.max_tokens)
            return await super().generate(token_ids, params, engine=engine)

    prompt = Prompt(id="p", messages=(), token_ids=(1, 2, 3), label="")
    trainer = Trainer(TableGroup(1), TableAlgorithm(NO_NEEDS), TrainConfig())
    probe = Probe(
        SyncConfig(),
        dtype="float32",
        prompt=prompt,
        temperature=1.0,
        seed=0,
        max_tokens=4,
        logprobs=trainer.logprobs,
    )
    asyncio.run(probe.check(Engines({"engine 0": 0.0}), ["engine 0"], 3))
    assert asked == [4]


def test_probe_refuses_a_stale_version():
    with pytest.raises(SyncError, match=r"engine 0 answers with versions \[2\]"):
        check_probe({"engine 0": 0.0}, version=2)
