"""Which reward judges which row: in the driver, in scoring processes, and before a run."""

import asyncio
from dataclasses import replace
from importlib import import_module

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vime_core.config.schema import RewardConfig, RewardPoolConfig
from vime_core.errors import ConfigError
from vime_core.plugins.entries import RewardEntry
from vime_core.rewards.combine import Part, combine
from vime_core.rewards.judge import Judge
from vime_core.rewards.pool import RewardPool
from vime_core.rewards.routing import NOT_ASKED, check_coverage, covers, reward_spec
from vime_core.testing.samples import make_sample
from vime_core.types import VERDICT_STATUSES, Prompt, Verdict


def row(data_source, name="row"):
    return Prompt(id=name, messages=(), token_ids=(1,), label="1", data_source=data_source)


def rewards(**patterns):
    return {name: RewardConfig(name=name, data_sources=list(globs)) for name, globs in patterns.items()}


@pytest.mark.parametrize(
    ("patterns", "covered", "left"),
    [
        (["*"], ["", "math", "a/b"], []),
        (["math*"], ["math", "math_dapo"], ["", "Math", "a/math"]),
        (["math_[ab]", "gsm8k"], ["math_a", "math_b", "gsm8k"], ["math_c", "gsm8k2"]),
        ([], [], ["", "math"]),
    ],
)
def test_patterns(patterns, covered, left):
    assert [source for source in [*covered, *left] if covers(patterns, source)] == covered


def test_every_row_needs_a_reward():
    chosen = rewards(math=["math*"], code=["code", "apps"])
    check_coverage(chosen, [row("math_a"), row("apps"), row("math_a")])
    with pytest.raises(ConfigError) as caught:
        check_coverage(chosen, [row("math_a"), row("code"), row("geometry", "train.jsonl:7"), row("geometry")])
    assert str(caught.value) == (
        "no reward judges prompt train.jsonl:7 with data_source 'geometry': rewards.math.data_sources=[math*] "
        "rewards.code.data_sources=[code,apps]; add a pattern that matches it, or leave the row out"
    )


def test_a_pattern_that_matches_no_row_is_noticed():
    with pytest.raises(ConfigError) as caught:
        check_coverage(rewards(all=["*"], code=["cod"]), [row("math"), row("code")])
    assert str(caught.value) == (
        "rewards.code.data_sources=[cod] matches no row: the rows' data sources are 'code', 'math'; correct the "
        "pattern, or leave code out of reward=[...]"
    )


class Told:
    """Plays the pool: rewards that leave a row to others say NOT_ASKED of it."""

    def __init__(self, configs, verdicts):
        self.configs = configs
        self.verdicts = verdicts

    async def ask(self, samples, prompt):
        return [
            [
                Part(name, config.weight, verdict if covers(config.data_sources, prompt.data_source) else NOT_ASKED)
                for (name, config), verdict in zip(self.configs.items(), self.verdicts, strict=True)
            ]
            for _ in samples
        ]


VERDICTS = st.builds(Verdict, st.integers(-5, 5).map(float), st.sampled_from(VERDICT_STATUSES), st.just(None))
SUBSETS = st.lists(st.sampled_from(["a", "b", "c"]), unique=True, max_size=3)


@given(st.lists(st.tuples(SUBSETS, VERDICTS), min_size=2, max_size=4), st.sampled_from(["a", "b", "c"]))
def test_the_verdict_is_that_of_the_rewards_that_judge_the_row(chosen, source):
    configs = {
        f"r{number}": RewardConfig(name=f"r{number}", weight=number + 1.0, data_sources=patterns)
        for number, (patterns, _) in enumerate(chosen)
    }
    told = Told(configs, [verdict for _, verdict in chosen])
    sample = make_sample(2, 3)
    judging = {name: chosen[int(name[1:])][1] for name, config in configs.items() if source in config.data_sources}
    score = Judge(told, configs).score([sample], row(source))
    if not judging:
        with pytest.raises(ConfigError, match="no reward judges prompt row"):
            asyncio.run(score)
        return
    [verdict] = asyncio.run(score)
    assert verdict == combine([Part(name, configs[name].weight, said) for name, said in judging.items()])
    assert sample.parts == {name: {"score": said.score, "status": said.status} for name, said in judging.items()}


def test_with_one_reward_nothing_is_kept():
    sample = make_sample(2, 3)
    [verdict] = asyncio.run(
        Judge(Told(rewards(only=["*"]), [Verdict(0.5, "wrong")]), rewards(only=["*"])).score([sample], row("a"))
    )
    assert (verdict, sample.parts) == (Verdict(0.5, "wrong"), {})


def specs_of(chosen):
    settings = import_module("pool_rewards").Settings
    configs = {
        name: settings(name=name, data_sources=patterns, factor=factor, **more)
        for name, (patterns, factor, more) in chosen.items()
    }
    entry = RewardEntry(name="echo", summary="", config=settings, factory="pool_rewards:Echo")
    return configs, [reward_spec(name, entry, config) for name, config in configs.items()]


def test_in_scoring_processes_also_of_their_own():
    configs, specs = specs_of(
        {
            "math": (["math*"], 1.0, {"weight": 2.0}),
            "code": (["code"], 10.0, {"workers": 1}),
            "all": (["*"], 100.0, {}),
        }
    )
    samples = [make_sample(2, 3, index=index) for index in (1, 2)]

    async def score(judge):
        sources = ("math_a", "code", "other")
        copies = [[replace(sample, metadata={}) for sample in samples] for _ in sources]
        rows = [row(source) for source in sources]
        return copies, await asyncio.gather(*(judge.score(group, r) for group, r in zip(copies, rows, strict=True)))

    with RewardPool(specs, config=RewardPoolConfig(time_limit_s=60.0)) as pool:
        groups, verdicts = asyncio.run(score(Judge(pool, configs)))
    assert [[verdict.score for verdict in of_group] for of_group in verdicts] == [[102, 204], [110, 220], [100, 200]]
    assert [[*group[0].parts] for group in groups] == [["math", "all"], ["code", "all"], ["all"]]
    assert groups[0][1].parts == {
        "math": {"score": 2.0, "status": "correct"},
        "all": {"score": 200.0, "status": "correct"},
    }


def test_a_process_that_ends_over_a_row_is_an_error_whichever_reward_it_names():
    told = Told(rewards(math=["math"], all=["*"]), [NOT_ASKED, Verdict(1.0, "correct")])

    async def ask(samples, prompt):
        return [[Part("math", 1.0, Verdict(0.0, "error", None, "its scoring process was killed"))] for _ in samples]

    told.ask = ask
    sample = make_sample(2, 3)
    [verdict] = asyncio.run(Judge(told, told.configs).score([sample], row("code")))
    assert (verdict.status, verdict.detail) == ("error", "math: its scoring process was killed")
    assert sample.parts == {"math": {"score": 0.0, "status": "error"}}
