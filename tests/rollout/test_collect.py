"""Concurrency, order, refilling and failures of the collector, with a scripted generator."""

import asyncio
import logging

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vime_core.config.schema import ComponentConfig, RolloutConfig
from vime_core.errors import ConfigError, EngineError, PluginError, RewardError
from vime_core.plugins.discovery import PluginInfo
from vime_core.plugins.entries import FilterEntry
from vime_core.plugins.registration import Registered
from vime_core.rollout.collect import Collector
from vime_core.rollout.config import SingleTurnConfig
from vime_core.rollout.filters import CheckedFilter
from vime_core.rollout.single_turn import SingleTurn
from vime_core.testing.fakes import ListSource, NumberTokenizer, ScriptedGenerator, ScriptedScorer
from vime_core.types import Prompt, Verdict


def prompts(count):
    return [Prompt(id=f"p{number}", messages=(), token_ids=(number,), label=str(number)) for number in range(count)]


def echo(request):
    """Each response begins with its prompt."""
    return [*request.token_ids, request.params.seed % 1000]


def right(sample, prompt):
    return Verdict(1.0, "correct")


class DropPrompts:
    """A filter by prompt id."""

    def __init__(self, dropped, reason="unwanted"):
        self.dropped = dropped
        self.reason = reason

    def keep(self, group):
        return self.reason if group.prompt.id in self.dropped else None


def make_collector(source, generator=None, verdict=right, scorer=None, filters=(), seed=0, **settings):
    defaults = {"name": "scripted", "prompts_per_step": 4, "samples_per_prompt": 2, "max_response_tokens": 8}
    return Collector(
        source=source,
        function=SingleTurn(SingleTurnConfig()),
        generator=generator or ScriptedGenerator(echo),
        scorer=scorer or ScriptedScorer(verdict),
        tokenizer=NumberTokenizer(),
        filters=filters,
        config=RolloutConfig(**defaults | settings),
        seed=seed,
        stop_token_ids=(0,),
    )


def collect(collector, step=1, policy_version=0):
    return asyncio.run(collector.collect(step, policy_version))


def prompt_ids(groups):
    return [group.prompt.id for group in groups]


def test_groups_are_decoded_scored_and_in_the_order_of_the_prompts():
    source = ListSource(prompts(10))
    collected = collect(make_collector(source, verdict=lambda sample, prompt: Verdict(float(prompt.label), "correct")))
    assert prompt_ids(collected.groups) == ["p0", "p1", "p2", "p3"]
    assert source.taken == 4
    for number, group in enumerate(collected.groups):
        assert group.id == f"1.0:p{number}"
        for index, sample in enumerate(group.samples):
            assert sample.key == (group.id, index)
            assert sample.response_text == f"{number} {sample.response_ids[1]}"
            assert sample.verdict == Verdict(float(number), "correct")
    assert collected.missing == 0
    assert collected.response_tokens == 4 * 2 * 2


@settings(max_examples=40, deadline=None)
@given(st.permutations(range(4)))
def test_the_order_does_not_depend_on_which_is_ready_first(ready):
    async def before(request):
        for _ in range(5 * ready[request.token_ids[0]]):
            await asyncio.sleep(0)

    scored = []

    def verdict(sample, prompt):
        scored.append(prompt.id)
        return right(sample, prompt)

    collected = collect(make_collector(ListSource(prompts(4)), ScriptedGenerator(echo, before), verdict))
    assert scored[::2] == [f"p{number}" for number in sorted(range(4), key=lambda number: ready[number])]
    assert prompt_ids(collected.groups) == ["p0", "p1", "p2", "p3"]


def test_a_group_is_scored_while_others_are_generated():
    async def main():
        scored = asyncio.Event()

        async def before(request):
            if request.token_ids[0] != 2:
                await scored.wait()

        def verdict(sample, prompt):
            if prompt.id == "p2":
                scored.set()
            return right(sample, prompt)

        return await make_collector(ListSource(prompts(4)), ScriptedGenerator(echo, before), verdict).collect(1, 0)

    assert prompt_ids(asyncio.run(main()).groups) == ["p0", "p1", "p2", "p3"]


def test_a_step_has_as_many_requests_at_a_time_as_it_has_samples():
    generator = ScriptedGenerator(echo)
    collect(make_collector(ListSource(prompts(20)), generator, filters=[DropPrompts({"p1", "p2", "p5"})]))
    assert generator.most_running == 4 * 2
    assert len(generator.requests) == (4 + 3) * 2


def test_a_dropped_group_is_replaced_by_the_next_prompt():
    source = ListSource(prompts(20))
    filters = [DropPrompts({"p1"}, "too easy"), DropPrompts({"p1", "p3", "p4"}, "dull")]
    collected = collect(make_collector(source, filters=filters))
    assert prompt_ids(collected.groups) == ["p0", "p2", "p5", "p6"]
    assert prompt_ids(collected.scored) == [f"p{number}" for number in range(7)]
    assert source.taken == 7
    metrics = collected.metrics
    assert metrics["rollout/dropped_groups"] == 3
    assert metrics["rollout/dropped_too_easy"] == 1
    assert metrics["rollout/dropped_dull"] == 2
    assert metrics["rollout/missing_groups"] == 0


@settings(max_examples=60, deadline=None)
@given(
    dropped=st.sets(st.integers(0, 11)),
    ready=st.lists(st.integers(0, 9), min_size=16, max_size=16),
    wanted=st.integers(1, 4),
)
def test_which_prompts_are_tried_follows_from_the_filters_alone(dropped, ready, wanted):
    async def before(request):
        for _ in range(ready[request.token_ids[0]]):
            await asyncio.sleep(0)

    source = ListSource(prompts(16))
    filters = [DropPrompts({f"p{number}" for number in dropped})]
    settings = {"prompts_per_step": wanted, "max_oversampling": 16.0}
    collected = collect(make_collector(source, ScriptedGenerator(echo, before), filters=filters, **settings))
    kept = [number for number in range(16) if number not in dropped][:wanted]
    assert prompt_ids(collected.groups) == [f"p{number}" for number in kept]
    assert source.taken == kept[-1] + 1


def test_metrics_are_over_dropped_groups_too():
    verdicts = {"p0": Verdict(1.0, "correct"), "p1": Verdict(0.0, "wrong"), "p2": Verdict(1.0, "correct")}
    collected = collect(
        make_collector(
            ListSource(prompts(3)),
            verdict=lambda sample, prompt: verdicts[prompt.id],
            filters=[DropPrompts({"p1"})],
            prompts_per_step=2,
        )
    )
    assert collected.metrics["rollout/raw_reward"] == pytest.approx(2 / 3)
    assert collected.rollout_seconds > 0
    assert collected.score_seconds >= 0


def test_when_too_many_are_dropped_the_accepted_ones_are_kept_and_the_rest_is_told(caplog):
    source = ListSource(prompts(20))
    dropped = {f"p{number}" for number in range(20)} - {"p0", "p6"}
    with caplog.at_level(logging.WARNING):
        collected = collect(make_collector(source, filters=[DropPrompts(dropped)], max_oversampling=2.0))
    assert prompt_ids(collected.groups) == ["p0", "p6"]
    assert source.taken == 8
    assert collected.metrics["rollout/missing_groups"] == 2
    assert "2 of 4 groups are missing: filters dropped unwanted 6 of the 8 tried" in caplog.text


def test_a_batch_that_must_be_full_ends_the_run_with_what_to_do():
    source = ListSource(prompts(20))
    dropped = {f"p{number}" for number in range(20)} - {"p0", "p6"}
    collector = make_collector(source, filters=[DropPrompts(dropped)], max_oversampling=2.0, partial_batch=False)
    with pytest.raises(ConfigError) as caught:
        collect(collector)
    assert str(caught.value) == (
        "step 1: 2 of 4 groups are missing: filters dropped unwanted 6 of the 8 tried; raise "
        "rollout.max_oversampling, loosen the filters, or set rollout.partial_batch=true"
    )
    assert source.taken == 8


def test_over_sampled_groups_are_counted():
    metrics = collect(make_collector(ListSource(prompts(20)), filters=[DropPrompts({"p1", "p2"})])).metrics
    assert (metrics["rollout/tried_groups"], metrics["rollout/dropped_groups"]) == (6.0, 2.0)
    assert metrics["rollout/missing_groups"] == 0.0


def test_a_step_without_any_group_is_an_error():
    source = ListSource(prompts(3))
    filters = [DropPrompts({"p0", "p1", "p2"})]
    with pytest.raises(
        ConfigError, match=r"step 1: the filters dropped all 16 groups \(unwanted 16; verdicts: correct 32\)"
    ):
        collect(make_collector(source, filters=filters))
    assert source.taken == 16


def test_a_prompt_that_comes_twice_in_a_step_makes_two_groups_with_seeds_of_their_own():
    generator = ScriptedGenerator(echo)
    collected = collect(make_collector(ListSource(prompts(3)), generator, prompts_per_step=7))
    assert [group.id for group in collected.groups] == [
        "1.0:p0", "1.0:p1", "1.0:p2", "1.1:p0", "1.1:p1", "1.1:p2", "1.2:p0",
    ]  # fmt: skip
    assert len({request.params.seed for request in generator.requests}) == 7 * 2


def test_two_collectors_sample_the_same_and_two_runs_do_not():
    def responses(seed, step):
        groups = collect(make_collector(ListSource(prompts(4)), seed=seed), step).groups
        return [sample.response_ids.tolist() for group in groups for sample in group.samples]

    assert responses(3, 1) == responses(3, 1)
    assert responses(3, 1) != responses(4, 1)
    assert responses(3, 1) != responses(3, 2)


def test_the_first_failure_of_an_engine_cancels_the_rest_and_is_raised_as_it_is():
    error = EngineError("engine 1 died: exit status -9")

    async def before(request):
        if request.token_ids[0] != 2:
            await asyncio.Event().wait()

    def answer(request):
        raise error

    generator = ScriptedGenerator(answer, before)
    with pytest.raises(EngineError) as caught:
        collect(make_collector(ListSource(prompts(4)), generator))
    assert caught.value is error
    assert generator.running == 0


def test_a_failure_of_scorer_or_filter_is_raised_as_it_is():
    def broken(sample, prompt):
        raise RewardError("the pool is gone")

    class Broken:
        def keep(self, group):
            raise ZeroDivisionError("a bug of the filter")

    with pytest.raises(RewardError, match="the pool is gone"):
        collect(make_collector(ListSource(prompts(4)), verdict=broken))
    with pytest.raises(ZeroDivisionError, match="a bug of the filter"):
        collect(make_collector(ListSource(prompts(4)), filters=[Broken()]))


@pytest.mark.parametrize("answer", [True, False, "", 3])
def test_a_filter_must_answer_none_or_a_reason(answer):
    class Answering:
        def keep(self, group):
            return answer

    entry = FilterEntry(name="fbool", summary="", config=ComponentConfig, factory="fbool:Answering")
    checked = CheckedFilter("fbool", Registered(entry, PluginInfo("acme", "acme-filters", "1.0")), Answering())
    with pytest.raises(PluginError) as caught:
        collect(make_collector(ListSource(prompts(4)), filters=[checked]))
    assert f"filter fbool failed: it returned {answer!r}, which must be None or why the group" in str(caught.value)
    assert "plugin acme (acme-filters 1.0)" in str(caught.value)


def test_samples_of_another_policy_version_stop_the_step():
    generator = ScriptedGenerator(echo, policy_version=2)
    assert collect(make_collector(ListSource(prompts(4)), generator), policy_version=2).missing == 0
    with pytest.raises(EngineError, match="sampled by policy version 2, must be 3: a weight push is missing"):
        collect(make_collector(ListSource(prompts(4)), generator), policy_version=3)


def test_a_scorer_with_a_verdict_too_few_is_refused():
    class Short(ScriptedScorer):
        async def score(self, samples, prompt):
            return (await super().score(samples, prompt))[1:]

    with pytest.raises(RewardError, match=r"group 1\.0:p\d: 1 verdicts on 2 samples"):
        collect(make_collector(ListSource(prompts(4)), scorer=Short(right)))
