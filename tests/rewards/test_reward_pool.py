"""The pool with real processes: pairing, faults of rewards, replacement."""

import asyncio
import os
import signal

import pytest

from vime_core.cluster.processes import identify
from vime_core.config.schema import RewardPoolConfig
from vime_core.errors import ConfigError, DeadlineError, PluginError, RewardError
from vime_core.rewards import process as scoring_process
from vime_core.rewards.pool import RewardPool
from vime_core.testing.samples import make_sample
from vime_core.types import Prompt, Verdict


def exists(pid):
    return identify(pid) is not None


def group_of(name, count):
    made = [make_sample(2, 3, group=name, index=index) for index in range(count)]
    for sample in made:
        sample.response_text = "echo"
    return made, Prompt(id=f"prompt {name}", messages=(), token_ids=(1,), label="1")


def test_order_and_pairing_with_hundreds_of_samples_at_once(make_pool):
    pool = make_pool(workers=3)

    async def score_all():
        return await asyncio.gather(*(pool.score(*group_of(f"g{i}", 1 + i % 9)) for i in range(100)))

    results = asyncio.run(score_all())
    for i, verdicts in enumerate(results):
        assert [verdict.extracted for verdict in verdicts] == [f"prompt g{i}/g{i}/{k}" for k in range(1 + i % 9)]
        assert [verdict.score for verdict in verdicts] == [float(k) for k in range(1 + i % 9)]
    workers = {int(verdict.detail) for verdicts in results for verdict in verdicts}
    assert workers == set(pool.pids)
    assert len(workers) == 3


def test_no_samples(make_pool, ask):
    assert ask(make_pool()) == []


def test_zero_score_stays_zero(make_pool, ask):
    [verdict] = ask(make_pool(), "echo")
    assert (verdict.score, verdict.status) == (0.0, "correct")


@pytest.mark.parametrize("action", ["spin", "spin_in_c", "sleep"])
def test_a_late_reward_is_killed_and_replaced(make_pool, ask, action):
    pool = make_pool(time_limit_s=0.5)
    before = pool.pids
    late, fine = ask(pool, action, "echo")
    assert late == Verdict(0.0, "timeout", None, "obey: no verdict within reward_pool.time_limit_s=0.5")
    assert fine.status == "correct"
    assert not exists(before[0])
    assert int(fine.detail) == pool.pids[0] != before[0]


def test_late_rewards_do_not_use_up_the_pool(make_pool, ask):
    pool = make_pool(workers=2, time_limit_s=0.2)
    verdicts = ask(pool, *["spin"] * 6, "echo", "echo")
    assert [verdict.status for verdict in verdicts] == ["timeout"] * 6 + ["correct"] * 2


@pytest.mark.parametrize(
    ("action", "cause"),
    [
        ("exit 3", "its scoring process ended with exit status 3"),
        ("exit 0", "its scoring process ended with exit status 0"),
        ("crash", "its scoring process was killed by SIGSEGV"),
        ("kill", "its scoring process was killed by SIGKILL"),
    ],
)
def test_a_dead_process_is_an_error_and_replaced(make_pool, ask, action, cause):
    dead, fine = ask(make_pool(), action, "echo")
    assert dead == Verdict(0.0, "error", None, f"obey: {cause}")
    assert fine.status == "correct"


@pytest.mark.parametrize(
    ("action", "words"),
    [
        ("fail them", "ValueError: two lines of them (pool_rewards.py:"),
        ("leave 3", "SystemExit: 3 (pool_rewards.py:"),
        ("recurse", "RecursionError: "),
        ("answer number", "TypeError: the reward returned 7, not a Verdict"),
        ("answer status", "ValueError: the reward gave the status 'status'"),
        ("answer nan", "ValueError: the reward gave the score nan"),
        ("nosuch", "AttributeError: "),
    ],
)
def test_an_exception_is_an_error_in_the_same_process(make_pool, ask, action, words):
    pool = make_pool()
    before = pool.pids
    failed, fine = ask(pool, action, "echo")
    assert (failed.score, failed.status) == (0.0, "error")
    assert words in failed.detail
    assert failed.detail.startswith("obey: ")
    assert "\n" not in failed.detail
    assert fine.status == "correct"
    assert pool.pids == before


def test_memory_is_limited(make_pool, ask):
    pool = make_pool(memory_limit_mib=512)
    hoarder, fine = ask(pool, "hoard", "echo")
    assert (hoarder.status, fine.status) == ("error", "correct")
    assert "MemoryError" in hoarder.detail


def test_what_a_reward_prints_does_not_reach_standard_output(make_pool, ask, capfd):
    [verdict] = ask(make_pool(), "chatter")
    assert verdict.status == "correct"
    assert capfd.readouterr().out == ""


def test_a_sample_that_cannot_be_sent_is_an_error(make_pool):
    pool = make_pool()
    made, prompt = group_of("g", 2)
    made[0].metadata["lock"] = open  # fine to pickle
    made[1].metadata["lock"] = lambda: None
    first, second = asyncio.run(pool.score(made, prompt))
    assert first.status == "correct"
    assert second.status == "error"
    assert "cannot be sent" in second.detail


def test_large_samples_and_answers(make_pool):
    pool = make_pool()
    [big], prompt = group_of("g", 1)
    big.metadata["filler"] = "x" * 5_000_000
    big.response_text = "fail " + "y" * 1_000_000
    [verdict] = asyncio.run(pool.score([big], prompt))
    assert verdict.detail.startswith("obey: ValueError: two lines of yyy")
    assert len(verdict.detail) < 1000


def test_children_of_a_killed_worker_are_killed_too(make_pool, ask, tmp_path, wait_until):
    file = tmp_path / "pids"
    pool = make_pool(("obey", "Obey", {"file": str(file)}), time_limit_s=2.0)
    assert [verdict.status for verdict in ask(pool, "spawn", "spawn exit")] == ["timeout", "error"]
    pids = [int(line) for line in file.read_text().split()]
    assert len(pids) == 4
    wait_until(lambda: not any(exists(pid) for pid in pids))


def test_a_worker_that_died_while_idle_is_replaced_without_a_failed_verdict(make_pool, ask, wait_until):
    pool = make_pool()
    [pid] = pool.pids
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not exists(pid))
    [verdict] = ask(pool, "echo")
    assert verdict.status == "correct"
    assert pool.pids != [pid]


@pytest.mark.parametrize(
    ("class_name", "kind", "words"),
    [
        ("Unbuildable", PluginError, "reward broken cannot be built: RuntimeError: no licence found (pool_rewards.py:"),
        ("NoSuch", PluginError, "reward broken cannot be built: AttributeError: "),
        ("DiesOnBuild", RewardError, "ended with exit status 7 while it started"),
    ],
)
def test_a_reward_that_cannot_be_built_fails_the_start(make_pool, class_name, kind, words):
    pool = make_pool(("broken", class_name, {}), start=False, workers=2)
    with pytest.raises(kind) as caught:
        pool.start()
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not any(exists(pid) for pid in pool.pids)


def test_a_start_that_takes_too_long(make_pool, monkeypatch):
    monkeypatch.setattr(scoring_process, "START_DEADLINE_S", 1.0)
    with pytest.raises(DeadlineError, match="did not start within 1 s"):
        make_pool(("slow", "Sleepy", {}))


def test_a_reward_that_cannot_be_replaced_ends_the_waiting(make_pool, tmp_path, monkeypatch):
    """The module vanishes after the start: no caller may wait for ever."""
    module = tmp_path / "vanishing_reward.py"
    module.write_text("from pool_rewards import Obey\nclass Vanishing(Obey): pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    pool = make_pool(("vanishing", "vanishing_reward:Vanishing", {}))
    module.unlink()
    for cache in tmp_path.glob("__pycache__/*"):
        cache.unlink()
    made, prompt = group_of("g", 3)
    made[0].response_text = "exit 1"
    with pytest.raises(PluginError, match="reward vanishing cannot be built: ModuleNotFoundError"):
        asyncio.run(pool.score(made, prompt))
    with pytest.raises(PluginError, match="vanishing"):
        asyncio.run(pool.score(*group_of("g", 1)))


def test_several_rewards_are_summed(make_pool):
    pool = make_pool(("first", "Echo", {"factor": 2.0}), ("second", "Echo", {"weight": -0.5, "factor": 1.0}))
    made, prompt = group_of("g", 3)
    verdicts = asyncio.run(pool.score(made, prompt))
    assert [verdict.score for verdict in verdicts] == [0.0, 1.5, 3.0]
    assert [verdict.extracted for verdict in verdicts] == [f"prompt g/g/{k}" for k in range(3)]


def test_the_failing_one_of_several_rewards_is_named(make_pool, ask):
    pool = make_pool(("math", "Obey", {}), ("picky", "Picky", {}), time_limit_s=0.5)
    even, odd, late = ask(pool, "echo", "echo", "spin")
    assert (even.score, even.status) == (0.25, "wrong")
    assert (odd.status, odd.detail.split(" (")[0]) == ("error", "picky: KeyError: 'odd'")
    assert (late.status, late.detail.split(":")[0]) == ("timeout", "math")


def test_a_reward_may_say_error_itself(make_pool, ask):
    assert ask(make_pool(), "silent error") == [Verdict(0.0, "error", None, "obey: said so")]


def test_weight_of_a_single_reward(make_pool, ask):
    verdicts = ask(make_pool(("obey", "Obey", {"weight": 3.0})), "echo", "echo")
    assert [verdict.score for verdict in verdicts] == [0.0, 3.0]


def test_no_reward_is_refused():
    with pytest.raises(ConfigError, match="no reward is chosen"):
        RewardPool([], config=RewardPoolConfig())


def test_not_started_and_closed(make_pool, ask):
    pool = make_pool(start=False)
    with pytest.raises(RewardError, match="was not started"):
        ask(pool, "echo")
    pool.close()
    pool.start()
    pool.close()
    pool.close()
    with pytest.raises(RewardError, match="is closed"):
        ask(pool, "echo")


def test_context_manager(make_pool, ask):
    with make_pool(start=False) as pool:
        assert ask(pool, "echo")[0].status == "correct"
        pids = pool.pids
    assert not any(exists(pid) for pid in pids)


def test_a_cancelled_caller_gives_up_what_waits(make_pool, ask):
    pool = make_pool(time_limit_s=1.0)

    async def cancelled():
        scoring = asyncio.ensure_future(pool.score(*group_of("g", 1)))
        made, prompt = group_of("h", 50)
        for sample in made:
            sample.response_text = "spin"
        waiting = asyncio.ensure_future(pool.score(made, prompt))
        await scoring
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(cancelled())
    [verdict] = ask(pool, "echo")
    assert verdict.status == "correct"
