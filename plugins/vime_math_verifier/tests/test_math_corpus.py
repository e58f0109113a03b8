"""The corpus and mutations by construction."""

from collections import Counter
from pathlib import Path

import pytest

import vime_math_verifier
from vime_core.rewards.audit import read_audit
from vime_math_verifier import verify
from vime_math_verifier.mutations import CHANGED, KEPT, mutations

CORPUS = Path(vime_math_verifier.__file__).parent / "corpus"


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("name", "count"), [("probes", 302), ("hostile", 20), ("graded", 2638), ("mutations", 2597)])
def test_every_row_of_the_corpus(name, count):
    rows = read_audit(CORPUS / f"{name}.jsonl")
    assert len(rows) == count
    for row in rows:
        verdict = verify(row.response, row.ground_truth)
        assert verdict.status == (row.status or verdict.status), row
        assert (verdict.status == "correct") is row.correct, row


def misses(count, seed):
    return [
        (mutation.kind, mutation.response, mutation.ground_truth)
        for mutation in mutations(count, seed)
        if (verify(mutation.response, mutation.ground_truth).status == "correct") is not mutation.correct
    ]


def test_mutations_are_repeatable_and_cover_all_classes():
    first, again = list(mutations(230, 1)), list(mutations(230, 1))
    assert first == again
    assert Counter(mutation.kind for mutation in first) == dict.fromkeys([*KEPT, *CHANGED], 10)
    assert list(mutations(230, 2)) != first


def test_some_mutations():
    assert misses(4600, seed=3) == []


@pytest.mark.full
def test_a_hundred_thousand_mutations():
    found = misses(100_000, seed=4)
    assert len(found) <= 10, found
