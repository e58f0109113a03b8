"""Agreement with the published correctness of real model solutions."""

import json
from pathlib import Path

from vime_math_verifier import verify

DATA = Path(__file__).parent / "data" / "gsm8k_graded.jsonl"
ROWS = [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()]


def test_agrees_on_every_solution():
    assert len(ROWS) == 300
    assert 80 < sum(row["correct"] for row in ROWS) < 150
    disagreements = [
        (row["id"], verify(row["response"], row["ground_truth"]))
        for row in ROWS
        if (verify(row["response"], row["ground_truth"]).status == "correct") is not row["correct"]
    ]
    assert disagreements == []


def test_what_is_unparseable_has_no_single_number_on_an_answer_line():
    unparseable = {
        row["id"]: row["response"].rsplit("\n", 1)[-1]
        for row in ROWS
        if verify(row["response"], row["ground_truth"]).status == "unparseable"
    }
    answer_lines = {line for line in unparseable.values() if line.startswith("Answer:")}
    assert answer_lines == {"Answer: -1.8 billion", "Answer: 1/5"}
    assert len(unparseable) <= 7
