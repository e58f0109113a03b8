import itertools
import json
import logging
import math
import os
import re
import shutil
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vime_core.errors import RunFolderError
from vime_core.log import log_to
from vime_core.report.charts import CHARTS, describe
from vime_core.report.curves import MIN_STEPS, curves
from vime_core.report.embed import embedded, html_text
from vime_core.report.page import _asset, curves_note, render_report, samples_note
from vime_core.report.samples import FIELDS, MAX_RESPONSE, collect_samples
from vime_core.run.folder import RunFolder
from vime_core.run.metrics import METRICS, MetricsWriter, meaning
from vime_core.run.rollouts import read_rollouts
from vime_core.types import Verdict

LIMIT_BYTES = 5_000_000


def rows_of(samples):
    return [dict(zip(FIELDS, row, strict=True)) for row in samples.rows]


def test_the_numbers_are_those_of_the_metrics_file(finished_run, blocks_of):
    metrics = blocks_of(render_report(finished_run))["metrics"]
    records = [json.loads(line) for line in finished_run.metrics_file.read_text().splitlines()]
    expected: dict = {}
    for record in records:
        for key, value in record.items():
            if key != "step":
                series = expected.setdefault(key, {"about": meaning(key), "steps": [], "values": []})
                series["steps"].append(record["step"])
                series["values"].append(value)
    assert metrics == expected
    assert None in metrics["train/grad_norm"]["values"]


def test_the_samples_are_those_of_the_rollouts(finished_run):
    samples = collect_samples(finished_run.rollouts)
    rows = rows_of(samples)
    assert samples.recorded == len(rows) == 60 * 16
    assert [row["step"] for row in rows] == sorted((row["step"] for row in rows), reverse=True)
    of_step = [row for row in rows if row["step"] == 33]
    saved = [s for group in read_rollouts(finished_run.rollout_file(33)) for s in group.samples]
    for row, sample in zip(of_step, saved, strict=True):
        prompt = samples.prompts[row["prompt"]]
        assert prompt["id"] == sample.prompt_id
        assert prompt["messages"][0]["role"] == "user"
        assert (row["index"], row["response"]) == (sample.index, sample.response_text)
        assert (row["status"], row["score"]) == (sample.verdict.status, sample.verdict.score)
        assert (row["extracted"], row["detail"]) == (sample.verdict.extracted, sample.verdict.detail)
        assert (row["tokens"], row["finish"]) == (len(sample.response_ids), sample.finish_reason)
        if sample.index == 3:
            assert row["advantage"] is None
        else:  # linspace(-1, 1, R) + index, without its first value
            length = len(sample.response_ids)
            assert row["advantage"] == pytest.approx(sample.index + 1 / (length - 1))
    assert samples_note(samples) == "The table holds 960 of 960 samples: every sample of steps 1 to 60."


def test_equal_prompts_are_kept_once(tmp_path, group_of):
    run = RunFolder.create_at(tmp_path / "run")
    for step in (1, 2):
        run.write_rollouts(step, [group_of(5, 1, np.random.default_rng(0))], {})
    samples = collect_samples(run.rollouts)
    assert (len(samples.prompts), len(samples.rows)) == (1, 8)


def test_nothing_is_loaded_from_elsewhere(finished_run):
    page = render_report(finished_run)
    markup = re.sub(r"<script.*?</script>|<style.*?</style>", "", page, flags=re.DOTALL)
    assert not re.search(r"\s(src|srcset|action|data)=|<(link|iframe|object|embed|img|base)\b|@import|url\(", markup)
    assert re.findall(r'href="([^"]*)"', markup) == ["#samples"]
    assert "default-src 'none'; script-src 'sha256-" in page
    addresses = set(
        re.findall(r"https?://[^\"'\s)]+", re.sub(r'<script type="application/json".*?</script>', "", page))
    )
    assert addresses == {"http://www.w3.org/2000/svg"}


def test_texts_of_the_run_are_no_markup(finished_run):
    page = render_report(finished_run)
    assert page.count("</script>") == 4
    assert "<b>run</b>" not in page
    assert "&lt;b&gt;run&lt;/b&gt;" in page
    page.encode("utf-8")


@given(st.recursive(st.text() | st.integers() | st.none() | st.characters(categories=["Cs"]), st.lists))
def test_embedded_values_come_back_and_end_no_script(value):
    text = embedded(value)
    assert json.loads(text) == value
    assert not re.search("[<>&\u2028\u2029\ud800-\udfff]", text)
    text.encode("utf-8")


def test_embedded_values_are_finite():
    with pytest.raises(ValueError, match="not JSON compliant"):
        embedded([math.nan])


@given(st.text() | st.characters(categories=["Cs", "Cc"]))
def test_html_text_is_text(text):
    shown = html_text(text)
    shown.encode("utf-8")
    assert not re.search("[<>\"']", shown)
    assert len(unescape(shown)) == len(text)


@pytest.fixture(scope="module")
def large_run(tmp_path_factory, group_of):
    """150 steps of 256 samples of about 2,000 characters."""
    run = RunFolder.create_at(tmp_path_factory.mktemp("large") / "run")
    run.config_file.write_text("train:\n  steps: 150\n")
    rng = np.random.default_rng(0)
    text = "\n".join(f"Then {n} < {n + 1} & so on, '\u6f22'." for n in range(60))
    groups = [group_of(1, number, rng, size=8, text=text) for number in range(32)]
    run.write_rollouts(1, groups, {})
    for step in range(2, 151):
        shutil.copyfile(run.rollout_file(1), run.rollout_file(step))
    writer = MetricsWriter(run.metrics_file)
    for step in range(1, 151):
        writer.write(step, {f"train/metric_{n}": float(value) for n, value in enumerate(rng.standard_normal(45))})
    writer.close()
    return run


def test_a_large_run_fits_and_the_page_says_what_is_left_out(large_run):
    page = render_report(large_run)
    assert 2_000_000 < len(page.encode()) < LIMIT_BYTES
    samples = collect_samples(large_run.rollouts)
    counts = dict.fromkeys(range(1, 151), 0)
    for row in rows_of(samples):
        counts[row["step"]] += 1
    assert counts[150] == 256
    whole = [step for step, count in counts.items() if count == 256]
    assert whole == samples.whole_steps[::-1] == list(range(min(whole), 151))
    assert sorted(samples.part_steps) == [step for step, count in counts.items() if 0 < count < 256]
    assert samples.absent_steps == [step for step, count in counts.items() if count == 0]
    assert len(samples.part_steps) > 60
    note = samples_note(samples)
    assert f"{sum(counts.values()):,} of 38,400 samples" in note
    assert "the first ones of" in note
    assert html_text(note) in page


def test_the_bytes_of_samples_are_bounded(large_run):
    for most in (0, 1_000, 100_000):
        samples = collect_samples(large_run.rollouts, max_bytes=most)
        assert len(embedded([samples.prompts, samples.rows]).encode()) <= most + 16
        assert sorted([*samples.whole_steps, *samples.part_steps, *samples.absent_steps]) == list(range(1, 151))
    assert samples.rows


def test_long_texts_lack_their_middle(tmp_path, group_of):
    run = RunFolder.create_at(tmp_path / "run")
    group = group_of(1, 1, np.random.default_rng(0), size=2)
    group.samples[0].response_text = f"begin{'x' * 2 * MAX_RESPONSE}end"
    group.samples[1].verdict = Verdict(1.0, "correct", "y" * 5_000, "")
    run.write_rollouts(1, [group], {})
    samples = collect_samples(run.rollouts)
    first, second = rows_of(samples)
    assert first["response"].startswith("beginxxx")
    assert first["response"].endswith("xxxend")
    assert f"[... {MAX_RESPONSE + 8:,} characters left out ...]" in first["response"]
    assert len(second["extracted"]) < 600
    assert "2 long texts lack their middle" in samples_note(samples)


def test_a_sample_without_a_verdict_and_scores_that_are_no_numbers(tmp_path, group_of):
    run = RunFolder.create_at(tmp_path / "run")
    group = group_of(1, 1, np.random.default_rng(0), size=3)
    group.samples[0].verdict = None
    group.samples[1].verdict = Verdict(math.nan, "error", None, "no answer")
    run.write_rollouts(1, [group], {group.samples[2].key: np.full(len(group.samples[2].response_ids), math.inf)})
    first, second, third = rows_of(collect_samples(run.rollouts))
    assert (first["status"], first["score"], first["detail"]) == (None, None, None)
    assert (second["status"], second["score"], second["extracted"]) == ("error", None, None)
    assert third["advantage"] is None


def test_a_prompt_of_tokens_only(tmp_path, group_of):
    run = RunFolder.create_at(tmp_path / "run")
    group = group_of(1, 1, np.random.default_rng(0))
    object.__setattr__(group.prompt, "messages", ())
    run.write_rollouts(1, [group], {})
    [prompt] = collect_samples(run.rollouts).prompts
    assert (prompt["messages"], prompt["tokens"]) == ([], 3)


def test_many_steps_are_thinned_out_with_the_last_and_the_rare_ones():
    records = [
        {"step": step, "train/loss": float(step), **({"eval/a/accuracy": 0.5} if step % 970 == 0 else {})}
        for step in range(10_001)
    ]
    shown = curves(records, max_values=1_000)
    assert shown.recorded_steps == 10_001
    assert shown.shown_steps <= 500
    steps = shown.series["train/loss"]["steps"]
    assert steps == sorted(steps)
    assert steps[-1] == 10_000
    assert shown.series["eval/a/accuracy"]["steps"] == list(range(0, 10_001, 970))
    assert curves_note(shown) == (
        f"The curves show {shown.shown_steps} of 10,001 steps, at equal distances; metrics.jsonl holds all."
    )
    assert curves(records[:MIN_STEPS], max_values=1).shown_steps == MIN_STEPS
    assert curves_note(curves(records[:5])) == ""


def test_a_run_that_failed_before_its_first_step(started_run, blocks_of):
    started_run.log_file.write_text(
        "2026 ERROR   driver: the run failed\n    Traceback <lost>\n    EngineError: <died>\n"
    )
    for _ in range(2):  # without a metrics file, and with an empty one
        page = render_report(started_run)
        found = blocks_of(page)
        assert (found["metrics"], found["charts"], found["samples"]["rows"]) == ({}, [], [])
        assert "not done: 0 of 60 steps" in page
        assert "EngineError: &lt;died&gt;" in page
        assert "There are no rollouts" in page
        started_run.metrics_file.touch()


def test_a_run_that_is_still_going(started_run, blocks_of, group_of):
    writer = MetricsWriter(started_run.metrics_file)
    writer.write(1, {"train/loss": 0.5})
    writer.close()
    assert "is incomplete" not in render_report(started_run)
    with started_run.metrics_file.open("a") as file:
        file.write('{"step": 2, "train/lo')
    started_run.write_rollouts(1, [group_of(1, 1, np.random.default_rng(0))], {})
    (started_run.rollouts / ".step_000002.parquet.partial").write_bytes(b"PAR1")
    page = render_report(started_run)
    assert blocks_of(page)["metrics"]["train/loss"]["values"] == [0.5]
    assert re.search(r"not done: 1 of 60 steps, the last one written 20\d\d-", page)
    assert "The last line of metrics.jsonl is incomplete and left out" in page
    assert "cannot be read" not in page


@pytest.mark.parametrize(
    ("events", "progress"),
    [
        (["the run has ended: stop_when: eval/a is 1"], "ended after 1 of 60 steps: stop_when: eval/a is 1"),
        (["the run has ended: interrupted"], "not done: 1 of 60 steps, the last one"),
        (["the run has ended: failed"], "not done: 1 of 60 steps, the last one"),
        (["the run has ended: stop_when: eval/a is 1", "vime starts"], "not done: 1 of 60 steps, the last one"),
    ],
)
def test_a_run_that_an_observer_ended(started_run, events, progress):
    writer = MetricsWriter(started_run.metrics_file)
    writer.write(1, {"train/loss": 0.5})
    writer.close()
    with log_to(started_run.log_file, "driver"):
        for event in events:
            logging.getLogger("vime_core.loop.train").info(event)
    assert progress in render_report(started_run)


def test_rollouts_that_cannot_be_read_are_named(started_run, group_of):
    for step in (1, 2):
        started_run.write_rollouts(step, [group_of(1, 1, np.random.default_rng(0))], {})
    started_run.rollout_file(2).write_bytes(b"PAR1 half")
    page = render_report(started_run)
    assert "<li>step_000002.parquet: " in page
    assert "4 of 4 samples" in page


def test_a_broken_line_of_metrics_is_told(started_run):
    started_run.metrics_file.write_text('{\n{"step": 2}\n')
    with pytest.raises(RunFolderError, match="line 1: no record of metrics"):
        render_report(started_run)


@pytest.mark.parametrize(
    ("config", "progress"),
    [
        ("{}", "not done: 0 steps"),
        ("train: 3\nrewards: [a]\n", "not done: 0 steps"),
        ('train: {steps: 7}\nmodel: {path: "\\ud800"}\n', "not done: 0 of 7 steps"),
    ],
)
def test_the_configuration_of_another_version(tmp_path, config, progress):
    run = RunFolder.create_at(tmp_path / "run")
    run.config_file.write_text(config)
    page = render_report(run)
    assert f'<p class="progress">{progress}</p>' in page
    page.encode("utf-8")


def test_a_folder_whose_name_is_no_text(tmp_path):
    run = RunFolder.create_at(Path(os.fsdecode(os.fsencode(tmp_path) + b"/run\xff")))
    run.config_file.write_text("{}")
    assert "<title>run\ufffd - vime report</title>" in render_report(run)


def test_every_metric_of_a_run_has_its_meaning(finished_run, blocks_of):
    metrics = blocks_of(render_report(finished_run))["metrics"]
    assert [key for key in metrics if not metrics[key]["about"]] == []
    assert meaning("eval/gsm8k/accuracy") == METRICS["eval/<name>/accuracy"]
    assert meaning("acme/other") == ""


LOOKS_OTHER = 0.12
"""Distance in OKLab from which on two areas are told apart at a glance."""


def oklab(tone):
    """Coordinates of a colour RRGGBB, as in https://bottosson.github.io/posts/oklab/ (public domain)."""
    values = np.array([int(tone[at : at + 2], 16) / 255 for at in (0, 2, 4)])
    linear = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
    cones = np.array([[0.4122, 0.5363, 0.0514], [0.2119, 0.6807, 0.1074], [0.0883, 0.2817, 0.6300]]) @ linear
    axes = [[0.2105, 0.7936, -0.0041], [1.9780, -2.4286, 0.4506], [0.0259, 0.7828, -0.8087]]
    return np.array(axes) @ np.cbrt(cones)


def test_the_charts_show_what_was_promised(finished_run, blocks_of):
    charts = {chart["title"]: chart for chart in blocks_of(render_report(finished_run))["charts"]}
    in_charts = {series["key"] for chart in charts.values() for series in chart["series"]}
    assert {
        "rollout/raw_reward", "rollout/response_len_mean", "rollout/response_len_max", "train/loss", "train/grad_norm",
        "train/lr", "train/train_rollout_logprob_abs_diff", "eval/gsm8k/accuracy", "eval/heldout/accuracy",
        "rollout/verdict_correct", "perf/rollout_time_s", "perf/save_time_s",
    } <= in_charts  # fmt: skip
    times = charts["Time of a step"]
    assert times["total"] == "perf/step_time_s"
    assert "perf/step_time_s" not in {series["key"] for series in times["series"]}
    assert [series["label"] for series in times["series"]][:3] == ["rollout", "score", "logprob"]
    assert "Staleness" not in charts


def test_stages_and_evaluations_that_are_new_are_shown_too():
    described = describe(CHARTS, ["perf/step_time_s", "perf/acme_time_s", "eval/x/y/accuracy"])
    labels = {chart["title"]: [series["label"] for series in chart["series"]] for chart in described}
    assert labels == {"Held-out accuracy": ["x/y"], "Time of a step": ["acme"]}


def test_the_parts_of_a_step_have_labels_and_colours_of_their_own():
    [times] = describe(CHARTS, [name for name in METRICS if name.startswith("perf/") and name.endswith("_time_s")])
    labels = [series["label"] for series in times["series"]]
    script, style = _asset("charts.js"), _asset("report.css")
    [rest] = re.findall(r'label: "(.+?)", about: "The rest of the step', script)
    assert len({*labels, rest}) == len(labels) + 1
    for scheme in style.split("@media (prefers-color-scheme: dark)"):
        tones = [oklab(tone) for tone in re.findall(r"--(?:c\d+|rest): #(\w{6});", scheme)]
        assert len(tones) == int(re.search(r"TONES = (\d+)", script)[1]) + 1 > len(labels)
        assert min(math.dist(*pair) for pair in itertools.combinations(tones, 2)) > LOOKS_OTHER
