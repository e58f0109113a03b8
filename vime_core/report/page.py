"""The page: everything it needs is in one file, and it asks nobody for anything."""

from __future__ import annotations

import base64
import hashlib
import time
from importlib import resources
from string import Template
from typing import TYPE_CHECKING, Any

import vime_core
from vime_core.report.charts import CHARTS, describe
from vime_core.report.curves import curves
from vime_core.report.embed import embedded, html_text
from vime_core.report.facts import gather_facts
from vime_core.report.samples import FIELDS, collect_samples
from vime_core.run.metrics import is_torn, meaning, read_metrics

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vime_core.report.curves import Curves
    from vime_core.report.facts import Facts
    from vime_core.report.samples import Samples
    from vime_core.run.folder import RunFolder

SCRIPTS = ("format.js", "scales.js", "charts.js", "samples.js")
"""In the order in which they run, as one script."""


def render_report(run: RunFolder) -> str:
    """The report of a run as one HTML page.

    Metrics that are being written, or were cut off by a crash, are left out, which the page says; rollouts that
    cannot be read are named there.

    Raises:
        RunFolderError: when config.yaml or metrics.jsonl cannot be read.
    """
    there = run.metrics_file.exists()
    torn = there and is_torn(run.metrics_file)
    records = read_metrics(run.metrics_file) if there else []
    facts = gather_facts(run, records[-1]["step"] if records else None)
    shown, samples = curves(records), collect_samples(run.rollouts)
    script = "\n".join(_asset(name) for name in SCRIPTS)
    style = _asset("report.css")
    return Template(_asset("page.html")).substitute(
        title=html_text(facts.title),
        policy=f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'",
        style=style,
        progress=html_text(facts.progress),
        made=html_text(
            f"made by vime {vime_core.__version__}, {time.strftime('%Y-%m-%d %H:%M:%S UTC', time.gmtime())}"
        ),
        settings=_description_list(facts.settings),
        versions=_versions(facts),
        config=html_text(facts.config),
        log=_log(facts),
        curves_note=html_text(curves_note(shown, torn=torn)),
        samples_note=html_text(samples_note(samples)),
        unreadable=_unreadable(samples),
        metrics=embedded(_metrics(shown)),
        charts=embedded(describe(CHARTS, shown.series)),
        samples=embedded({"fields": FIELDS, "prompts": samples.prompts, "rows": samples.rows}),
        script=script,
    )


def curves_note(shown: Curves, *, torn: bool = False) -> str:
    """What the curves leave out, in sentences; empty when nothing. `torn`: the last line of the metrics."""
    thinned = (
        f"The curves show {shown.shown_steps:,} of {shown.recorded_steps:,} steps, at equal distances; metrics.jsonl "
        "holds all."
    )
    cut = "The last line of metrics.jsonl is incomplete and left out: it was being written, or the run died then."
    return " ".join([thinned] * (shown.shown_steps != shown.recorded_steps) + [cut] * torn)


def samples_note(samples: Samples) -> str:
    """Which samples the table holds, in a few sentences."""
    if not samples.recorded:
        return "There are no rollouts: no step is finished, or the run does not save them (run.save_rollouts)."
    shown = f"The table holds {len(samples.rows):,} of {samples.recorded:,} samples"
    parts = [f"every sample of {_steps(samples.whole_steps)}"] if samples.whole_steps else []
    parts += [f"the first ones of {_steps(samples.part_steps)}"] if samples.part_steps else []
    parts += [f"none of {_steps(samples.absent_steps)}"] if samples.absent_steps else []
    sentences = [f"{shown}: {', '.join(parts)}."]
    if samples.shortened:
        sentences.append(f"{samples.shortened:,} long texts lack their middle.")
    if samples.shortened or samples.part_steps or samples.absent_steps:
        sentences.append("The folder rollouts holds everything.")
    return " ".join(sentences)


def _steps(steps: list[int]) -> str:
    low, high = min(steps), max(steps)
    if len(steps) == 1:
        return f"step {low}"
    if len(steps) == high - low + 1:
        return f"steps {low} to {high}"
    return f"{len(steps)} steps between {low} and {high}"


def _metrics(shown: Curves) -> dict[str, Any]:
    return {key: {"about": meaning(key), **series} for key, series in shown.series.items()}


def _description_list(rows: Mapping[str, str]) -> str:
    return "\n".join(
        f"<div><dt>{html_text(label)}</dt><dd>{html_text(value)}</dd></div>" for label, value in rows.items()
    )


def _versions(facts: Facts) -> str:
    if not facts.versions:
        return "<p>The run did not keep its versions.</p>"
    return f'<dl class="facts versions">{_description_list(facts.versions)}</dl>'


def _log(facts: Facts) -> str:
    if not facts.log_end:
        return ""
    heading = '<section aria-labelledby="log"><h2 id="log">End of the log</h2>'
    return f"{heading}<pre>{html_text(facts.log_end)}</pre></section>"


def _unreadable(samples: Samples) -> str:
    rows = [f"<li>{html_text(f'{name}: {reason}')}</li>" for name, reason in samples.unreadable.items()]
    return (
        f'<p class="warning">Rollouts that cannot be read:</p><ul class="warning">{"".join(rows)}</ul>' if rows else ""
    )


def _hash(content: str) -> str:
    """What a content security policy calls an inline script or style sheet."""
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}"


def _asset(name: str) -> str:
    return (resources.files("vime_core.report") / "assets" / name).read_text(encoding="utf-8")
