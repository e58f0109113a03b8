"""`compat=official` scores as the published rule did, on all rows of a recording of it."""

import json
from pathlib import Path

import pytest

from vime_core.testing.samples import make_sample
from vime_core.types import Prompt
from vime_math_verifier.config import DapoMathConfig
from vime_math_verifier.official import NOT_FOUND, normalise, official_score
from vime_math_verifier.reward import DapoMath

GOLDEN = Path(__file__).parent / "data" / "verifier" / "official_golden.jsonl"
ROWS = [json.loads(line) for line in GOLDEN.read_text(encoding="utf-8").splitlines()]


def reward_score(response, ground_truth, **settings):
    sample = make_sample(1, 1)
    sample.response_text = response
    return DapoMath(DapoMathConfig(**settings)).score(sample, Prompt("p", (), (1,), ground_truth))


def test_every_recorded_output():
    assert len(ROWS) == 1262
    assert sum(row["acc"] for row in ROWS) == 207
    for row in ROWS:
        score = official_score(row["response"], row["ground_truth"], strict_box=row["strict_box"])
        assert (score.score, score.correct, score.prediction) == (row["score"], row["acc"], row["pred"]), row


def test_the_reward_gives_the_recorded_scores():
    for row in ROWS:
        verdict = reward_score(row["response"], row["ground_truth"], compat="official", strict_box=row["strict_box"])
        assert (verdict.score, verdict.status == "correct") == (row["score"], row["acc"])
        assert verdict.extracted == (None if row["pred"] == NOT_FOUND else row["pred"])


@pytest.mark.parametrize(
    ("response", "status", "score"),
    [("Answer: 3 4", "correct", 1.0), ("**Answer:** 34", "wrong", -1.0), ("Answer: 35", "wrong", -1.0)],
)
def test_its_mistakes_are_kept(response, status, score):
    verdict = reward_score(response, "34", compat="official")
    assert (verdict.status, verdict.score) == (status, score)


def test_normalisation_of_fractions_and_roots():
    assert normalise(r"x = $\frac12$") == r"\frac{1}{2}"
    assert normalise(r"\sqrt2") == r"\sqrt{2}"


def test_strict_box_without_the_official_rule_is_refused():
    with pytest.raises(ValueError, match="strict_box needs"):
        DapoMathConfig(strict_box=True)
