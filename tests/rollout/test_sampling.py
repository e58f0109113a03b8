import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from vime_core.config.schema import EvalSetConfig
from vime_core.rollout.sampling import evaluation_params, group_id, rollout_params, sample_seed


def test_seeds_do_not_change_with_process_or_version():
    """Golden: a run that is continued samples what it would have sampled."""
    assert sample_seed(0, "1.0:p", 0) == 970408210
    code = "from vime_core.rollout.sampling import sample_seed; print(sample_seed(5, '3.0:ä', 2))"
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    ).stdout
    assert int(printed) == sample_seed(5, "3.0:ä", 2)


@given(seed=st.integers(0, 2**63), group=st.text(st.characters(exclude_categories=["Cs"])), index=st.integers(0, 4096))
def test_seeds_fit_in_31_bits(seed, group, index):
    assert 0 <= sample_seed(seed, group, index) < 2**31


def test_every_run_step_occurrence_prompt_and_index_has_a_seed_of_its_own():
    seeds = {
        sample_seed(run, group_id(step, occurrence, prompt), index)
        for run in (0, 1, 11)
        for step in (1, 11)
        for occurrence in (0, 1)
        for prompt in ("a", "1:a", "0")
        for index in (0, 1, 10)
    }
    assert len(seeds) == 3 * 2 * 2 * 3 * 3


def test_group_ids_are_unique_whatever_the_prompt_ids_are():
    parts = [
        (step, occurrence, prompt) for step in (1, 11) for occurrence in (0, 1) for prompt in ("a", "1:a", "0:1:a")
    ]
    assert len({group_id(*part) for part in parts}) == len(parts)


def test_training_samples_follow_the_rollouts_settings(make_config):
    config = make_config(samples_per_prompt=3, temperature=0.7, top_p=0.9, top_k=5, max_response_tokens=11)
    params = rollout_params(config, [4, 2], "1.0:p", run_seed=9)
    assert [one.seed for one in params] == [sample_seed(9, "1.0:p", index) for index in range(3)]
    for one in params:
        assert (one.temperature, one.top_p, one.top_k, one.max_tokens) == (0.7, 0.9, 5, 11)
        assert one.stop_token_ids == (4, 2)


def test_seeds_can_be_left_to_the_engine(make_config):
    params = rollout_params(make_config(seed_samples=False), [0], "1.0:p", run_seed=9)
    assert [one.seed for one in params] == [None, None]


def test_evaluation_is_greedy_at_temperature_zero(make_config):
    config = make_config(temperature=0.7, top_p=0.9, top_k=5)
    [one] = evaluation_params(config, EvalSetConfig(path="x"), [0], "eval.0:p", run_seed=9)
    assert (one.temperature, one.top_p, one.top_k, one.seed) == (0.0, 1.0, -1, None)
    assert one.max_tokens == config.max_response_tokens


def test_sampled_evaluation_has_seeds_and_the_rollouts_cuts(make_config):
    config = make_config(top_p=0.9, top_k=5)
    eval_set = EvalSetConfig(path="x", samples_per_prompt=2, temperature=0.3)
    first, second = evaluation_params(config, eval_set, [0], "eval.0:p", run_seed=9)
    assert (first.temperature, first.top_p, first.top_k) == (0.3, 0.9, 5)
    assert None not in (first.seed, second.seed)
    assert first.seed != second.seed
