"""Audit files, counts, intervals, and the command."""

import json

import pytest

from vime_core.cli import main
from vime_core.errors import DataError
from vime_core.rewards.audit import AuditReport, AuditRow, Rate, audit, read_audit
from vime_core.types import Verdict


def write(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def row(**changes):
    return {"response": "echo", "ground_truth": "1", "correct": True, **changes}


@pytest.mark.parametrize(
    ("count", "total", "low", "high"),
    # Newcombe 1998, Statistics in Medicine 17:857, table I, method 3.
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_intervals_as_published(count, total, low, high):
    assert Rate(count, total).interval == pytest.approx((low, high), abs=5e-5)


def test_nothing_measured_is_no_knowledge():
    assert Rate(0, 0).interval == (0.0, 1.0)


def test_counts_of_a_report():
    report = AuditReport("r")
    for correct, status in [
        (True, "correct"),
        (True, "wrong"),
        (False, "correct"),
        (False, "wrong"),
        (True, "timeout"),
    ]:
        report.add(AuditRow("1", "", "1", correct, kind="k"), Verdict(0.0, status))
    report.add(AuditRow("2", "", "1", False, status="unparseable"), Verdict(0.0, "wrong"))
    report.add(AuditRow("3", "", "1", False, status="error"), Verdict(0.0, "error"))
    assert (report.false_positives, report.false_negatives) == (Rate(1, 3), Rate(1, 2))
    assert report.silent == Rate(2, 7)
    assert [failure.what for failure in report.failures] == [
        "false negative",
        "false positive",
        "timeout",
        "other status",
    ]
    assert report.by_kind() == {"k": 3, "": 1}


def test_rows_of_a_file(tmp_path):
    file = write(tmp_path / "a.jsonl", row(id="x"), row(parts=[["ab", 2], ["c", 1]], response=None, kind="k"))
    first, second = read_audit(file)
    assert (first.id, first.response) == ("x", "echo")
    assert (second.id, second.response, second.kind) == ("2", "ababc", "k")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "line 1 is not JSON"),
        ("3", "line 1 is not a JSON object"),
        ('{"ground_truth": "1", "correct": true}', "line 1: response must be given"),
        ('{"response": "", "ground_truth": 1, "correct": true}', "line 1: ground_truth must be given, as text"),
        ('{"response": "", "ground_truth": "1", "correct": "yes"}', "line 1: correct must be given, as true or false"),
    ],
)
def test_a_bad_row_is_named(tmp_path, line, words):
    file = tmp_path / "a.jsonl"
    file.write_text(line)
    with pytest.raises(DataError) as caught:
        read_audit(file)
    assert words in str(caught.value)
    assert str(file) in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"cannot read .*nosuch.jsonl"):
        read_audit(tmp_path / "nosuch.jsonl")


def test_a_reward_that_hangs_and_fails_is_audited_to_the_end(make_pool):
    rows = [AuditRow(str(i), text, "1", True) for i, text in enumerate(["echo", "spin", "crash", "echo"])]
    report = audit(make_pool(time_limit_s=0.5), "obey", rows)
    assert report.counts == {"correct": 2, "timeout": 1, "error": 1}
    assert [failure.row.id for failure in report.failures] == ["1", "2"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nosuch.jsonl"], "cannot read nosuch.jsonl"),
        (["/dev/null"], "/dev/null has no rows; give a file of JSON lines"),
        (["--reward", "dapo_maths"], "dapo_math"),
        (["--workers", "0"], "reward_pool.workers=0 (command line): must be at least 1"),
        (["--time-limit", "0"], "reward_pool.time_limit_s=0.0 (command line): must be more than 0"),
        (["--set", "wrong_scor=1"], "did you mean rewards.dapo_math.wrong_score?"),
        (["--set", "wrong_score=much"], "rewards.dapo_math.wrong_score=much (command line): must be a number"),
        (["--set", "workers=0"], "rewards.dapo_math.workers=0 (command line): must be at least 1"),
        (["--set", "compat=offical"], "did you mean official?"),
        (["--set", "compat"], "--set compat: give it as key=value"),
        (["--show", "-5"], "--show must be -1, 0 or a number of rows"),
        (["--workers", "9999"], "--workers must be from 1 to"),
        (["--set", "strict_box=true"], "rewards.dapo_math.strict_box needs rewards.dapo_math.compat=official"),
    ],
)
def test_mistakes_on_the_command_line_are_one_line_and_exit_2(arguments, words, capsys):
    assert main(["verifier", "audit", *arguments]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert words in line


def test_the_command_prints_rates_and_failing_rows(tmp_path, capsys):
    right = row(response="Answer: 1")
    file = write(tmp_path / "a.jsonl", right, row(response="Answer: 2", correct=False))
    assert main(["verifier", "audit", str(file)]) == 0
    assert "false positives  0 of 1 = 0.000% (95 %: 0.000% to 79.345%)" in capsys.readouterr().out
    file = write(tmp_path / "b.jsonl", right, row(response="Answer: 2", kind="mine"))
    assert main(["verifier", "audit", str(file)]) == 1
    printed = capsys.readouterr().out
    assert "false negatives  1 of 2 = 50.000%" in printed
    assert "false negative: row 2 [mine] expected '1', extracted '2' (wrong: expected 1)" in printed
