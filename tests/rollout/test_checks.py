"""What a rollout function and the engines may not return."""

import numpy as np
import pytest

from vime_core.errors import EngineError, PluginError, RewardError
from vime_core.rollout.checks import check_group, check_sample, check_verdicts
from vime_core.testing.samples import make_sample
from vime_core.types import Group, Prompt, Verdict, VersionSpan


def make_group(count=2):
    return Group("g", Prompt("g", (), (1,), ""), [make_sample(2, 4, group="g", index=i) for i in range(count)])


def changed(**changes):
    sample = make_sample(2, 4, group="g", index=1)
    for name, value in changes.items():
        setattr(sample, name, value)
    return sample


def test_a_whole_sample_passes():
    check_sample(changed(policy_versions=(VersionSpan(0, 0, 1), VersionSpan(0, 1, 4))), policy_version=0)


def test_an_empty_response_passes_with_and_without_a_span():
    empty = {
        "response_ids": np.array([], np.int64),
        "loss_mask": np.array([], np.bool_),
        "rollout_logprobs": np.array([], np.float32),
    }
    check_sample(changed(**empty, policy_versions=()), policy_version=0)
    check_sample(changed(**empty, policy_versions=(VersionSpan(0, 0, 0),)), policy_version=0)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"finish_reason": "abort"}, "aborted after 4 tokens"),
        ({"loss_mask": np.ones(3, np.bool_)}, "4 response tokens but a loss mask of 3"),
        ({"rollout_logprobs": np.zeros(3, np.float32)}, "4 response tokens but 3 log-probs"),
        (
            {"rollout_logprobs": np.array([0, -1, np.nan, np.nan], np.float32)},
            "log-prob of response token 2 is not finite",
        ),
        (
            {"rollout_logprobs": np.array([-np.inf, -1, -1, -1], np.float32)},
            "log-prob of response token 0 is not finite",
        ),
        ({"policy_versions": ()}, "cover 0 of 4 response tokens"),
        ({"policy_versions": (VersionSpan(0, 0, 3),)}, "cover 3 of 4 response tokens"),
        ({"policy_versions": (VersionSpan(0, 0, 5),)}, "cover 5 of 4 response tokens"),
        ({"policy_versions": (VersionSpan(0, 0, 1), VersionSpan(0, 2, 4))}, "do not cover the response"),
        ({"policy_versions": (VersionSpan(0, 0, 2), VersionSpan(1, 2, 4))}, "policy version 1, must be 0"),
    ],
)
def test_a_faulty_sample_is_named(changes, fault):
    with pytest.raises(EngineError, match=f"^group g, sample 1: .*{fault}"):
        check_sample(changed(**changes), policy_version=0)


def test_logprobs_of_greedy_samples_may_be_anything():
    sample = changed(rollout_logprobs=np.full(4, -np.inf, np.float32))
    check_sample(sample, policy_version=0, logprobs=False)


def test_a_group_has_one_sample_for_each_of_the_params():
    check_group(make_group(), 2)
    with pytest.raises(PluginError, match="made 2 samples of prompt g, asked for 3"):
        check_group(make_group(), 3)


@pytest.mark.parametrize(("name", "value"), [("index", 0), ("group_id", "h"), ("prompt_id", "h")])
def test_a_sample_is_labelled_with_its_place(name, value):
    group = make_group()
    setattr(group.samples[1], name, value)
    with pytest.raises(PluginError, match="labelled sample 1 of group g"):
        check_group(group, 2)


def test_there_is_one_verdict_for_each_sample():
    with pytest.raises(RewardError, match="group g: 1 verdicts on 2 samples"):
        check_verdicts(make_group(), [Verdict(1.0, "correct")])


def test_a_score_is_a_number_where_it_counts():
    check_verdicts(make_group(), [Verdict(float("nan"), "timeout"), Verdict(0.0, "wrong")])
    with pytest.raises(RewardError, match="sample 1: the reward gave the score nan"):
        check_verdicts(make_group(), [Verdict(0.0, "wrong"), Verdict(float("nan"), "correct")])
