"""Batches, the bound on what waits, a reward's own processes, and many hostile tasks among normal ones."""

import asyncio
import os
import threading

import numpy as np
import pytest

from vime_core.rewards.channel import Channel
from vime_core.rewards.tasks import Job, TaskQueue
from vime_core.rewards.wire import decode, encode
from vime_core.testing.samples import make_sample
from vime_core.types import Prompt, Verdict


def group(name, actions):
    made = [make_sample(2, 3, group=name, index=index) for index in range(len(actions))]
    for sample, action in zip(made, actions, strict=True):
        sample.response_text = action
    return made, Prompt(id=name, messages=({"role": "user", "content": name},), token_ids=(1, 2), label="1")


def test_a_batch_arrives_as_it_was_sent():
    made, prompt = group("g", ["a", "b", ""])
    made[1].verdict = Verdict(0.5, "wrong", "3", "why")
    made[2].metadata["key"] = [1, {"deep": None}]
    other = Prompt("other", (), (), "2", "source", {"k": 1})
    prompts = [prompt, other, prompt]
    encoded = encode(made, prompts, text_only=False)
    descriptor = os.memfd_create("batch")
    os.write(descriptor, encoded.aside)
    sent_batch = decode(encoded.body, descriptor)
    for sample, its_prompt, (sent, sent_prompt) in zip(made, prompts, sent_batch, strict=True):
        assert sent_prompt == its_prompt
        assert isinstance(sent, type(sample))
        for field in (
            "prompt_id",
            "group_id",
            "index",
            "finish_reason",
            "policy_versions",
            "response_text",
            "metadata",
        ):
            assert getattr(sent, field) == getattr(sample, field)
        assert (sent.verdict, sent.key) == (sample.verdict, sample.key)
        for field in ("prompt_ids", "response_ids", "loss_mask", "rollout_logprobs"):
            theirs, ours = getattr(sent, field), getattr(sample, field)
            assert theirs.dtype == ours.dtype
            np.testing.assert_array_equal(theirs, ours)
        with pytest.raises(AttributeError, match="a sample has no 'nosuch'"):
            sent.nosuch  # noqa: B018


def test_what_a_text_only_reward_does_not_read_stays_where_it_is(make_pool, ask, monkeypatch):
    sent = []
    send = Channel.send
    monkeypatch.setattr(Channel, "send", lambda self, *parts: sent.append(parts) or send(self, *parts))
    texts, tokens = ("texts", "Obey", {}), ("tokens", "Obey", {})
    [verdict] = ask(make_pool(texts, text_only={"texts"}), "echo")
    assert verdict.status == "error"
    assert "AttributeError: a reward that is registered as text_only reads sample.index" in verdict.detail
    assert not sent[-1][1]
    both = ask(make_pool(texts, tokens, text_only={"texts"}), "echo", "echo")
    assert [verdict.status for verdict in both] == ["correct"] * 2
    assert sent[-1][1]


def test_a_killed_batch_costs_only_the_late_verdict(make_pool, ask):
    pool = make_pool(time_limit_s=0.5)
    verdicts = ask(pool, *["echo"] * 20, "spin", *["echo"] * 20)
    assert [verdict.status for verdict in verdicts] == ["correct"] * 20 + ["timeout"] + ["correct"] * 20
    before, after = {verdict.detail for verdict in verdicts[:20]}, {verdict.detail for verdict in verdicts[21:]}
    assert len(before) == len(after) == 1
    assert before != after


def test_more_results_than_the_shared_memory_holds(make_pool, ask):
    responses = [f"answer_long {size}" for size in (10, 300_000, 700_000, 2_000_000, 10)]
    verdicts = ask(make_pool(), *responses)
    assert [len(verdict.detail) for verdict in verdicts] == [10, 300_000, 700_000, 2_000_000, 10]


def test_no_more_wait_than_the_queue_takes():
    queue = TaskQueue(capacity=10, takers=1)
    jobs = [Job(*group(str(index), ["echo"] * 4)) for index in range(5)]
    tickets = [queue.enter(job) for job in jobs]
    assert [ticket.done() for ticket in tickets] == [True, True, False, False, False]
    assert len(queue) == 8
    first = queue.take(3, block=True)
    assert [task.index for task in first] == [0, 1, 2]
    assert [ticket.done() for ticket in tickets] == [True, True, True, False, False]
    assert len(queue) == 9


def test_a_job_larger_than_the_queue_is_let_in_alone():
    queue = TaskQueue(capacity=2, takers=1)
    assert queue.enter(Job(*group("a", ["echo"] * 5))).done()
    assert not queue.enter(Job(*group("b", ["echo"]))).done()


def test_a_refusing_queue_wakes_who_waits_outside_and_who_takes():
    queue = TaskQueue(capacity=1, takers=1)
    inside, outside = Job(*group("a", ["echo"])), Job(*group("b", ["echo"]))
    queue.enter(inside)
    ticket = queue.enter(outside)
    taken = []
    queue.take(1, block=True)
    taker = threading.Thread(target=lambda: taken.append(queue.take(1, block=True) and queue.take(1, block=True)))
    taker.start()
    queue.refuse(ValueError("closed"))
    taker.join(30)
    assert not taker.is_alive()
    assert ticket.done()
    with pytest.raises(ValueError, match="closed"):
        queue.enter(Job(*group("c", ["echo"])))


def test_a_waiting_reward_has_processes_and_a_limit_of_its_own(make_pool, ask, tmp_path):
    """Six calls that wait for each other are under way at once, longer than the others' limit."""
    own = {"workers": 6, "time_limit_s": 60.0, "factor": 6.0, "file": str(tmp_path)}
    pool = make_pool(("fast", "Echo", {}), ("judge", "Meet", own), workers=1, time_limit_s=0.4)
    assert len(pool.pids) == 7
    assert {verdict.status for verdict in ask(pool, *["x"] * 6)} == {"correct"}


def test_the_limit_of_a_reward_of_its_own_is_named(make_pool, ask):
    pool = make_pool(("fast", "Echo", {}), ("judge", "Nap", {"workers": 2, "time_limit_s": 0.3}), time_limit_s=60.0)
    late, fine = ask(pool, "60", "0")
    assert (late.status, late.detail) == ("timeout", "judge: no verdict within rewards.judge.time_limit_s=0.3")
    assert fine.status == "correct"


def test_hostile_tasks_among_many_normal_ones(make_pool):
    """With 200 in flight each normal one is right and has its own prompt; the times: benchmarks/reward_pool.py."""
    actions = ["spin" if index % 201 == 100 else "echo" for index in range(2010)]
    pool = make_pool(workers=2, time_limit_s=0.3)

    async def score_all():
        room = asyncio.Semaphore(200)

        async def one(index):
            async with room:
                return (await pool.score(*group(str(index), [actions[index]])))[0]

        return await asyncio.gather(*(one(index) for index in range(len(actions))))

    verdicts = asyncio.run(score_all())
    assert [verdict.status for verdict in verdicts] == [
        "timeout" if action == "spin" else "correct" for action in actions
    ]
    assert all(verdict.extracted == f"{i}/{i}/0" for i, verdict in enumerate(verdicts) if verdict.status == "correct")
    assert len(pool.pids) == 2
