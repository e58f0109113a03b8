"""The page as a browser shows it."""

import base64
import io
import json
import re

import numpy as np
import pytest
from PIL import Image

from vime_core.cli import main
from vime_core.run.metrics import read_metrics
from vime_core.run.rollouts import read_rollouts

CHART = "[...document.querySelectorAll('.chart')].find((one) => one.querySelector('h3').textContent === {})"


@pytest.fixture(scope="module")
def page(finished_run, tmp_path_factory):
    """The report of the finished run, by the command."""
    file = tmp_path_factory.mktemp("report") / "page.html"
    assert main(["report", str(finished_run.path), "--output", str(file)]) == 0
    return file


def screenshot(browser, rectangle: dict | None = None):
    """[height, width, 3] uint8 of a rectangle of the page, or of all of it."""
    if rectangle is None:
        size = "({x: 0, y: 0, width: innerWidth, height: document.documentElement.scrollHeight})"
        rectangle = browser.run(size)
    clip = {**rectangle, "scale": 1}
    image = browser.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)["data"]
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(image))).convert("RGB"))


def colours(picture) -> int:
    return len(np.unique(picture.reshape(-1, 3), axis=0))


def complaints(browser) -> list:
    """Errors in the console, and requests for anything but the page itself."""
    return [
        event
        for event in browser.events
        if event.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled")
        or (
            event.get("method") == "Network.requestWillBeSent"
            and not event["params"]["request"]["url"].startswith(("file:", "about:"))
        )
    ]


def test_the_page_is_whole_quiet_and_not_blank(browser, page, tmp_path):
    browser.open(page)
    picture = screenshot(browser)
    Image.fromarray(picture).save(tmp_path / "screenshot.png")
    assert complaints(browser) == []
    assert browser.run("window.broken") is None
    assert browser.run("document.querySelectorAll('img, iframe, link, script[src]').length") == 0
    height, width, _ = picture.shape
    assert width == 1280
    assert height > 2_000
    assert colours(picture) > 200
    drawn = json.loads(
        browser.run(
            "JSON.stringify([...document.querySelectorAll('.chart svg, .table-frame')].map((one) => {"
            "const {x, y, width, height} = one.getBoundingClientRect(); return {x, y: y + scrollY, width, height}}))"
        )
    )
    assert len(drawn) == 14
    for rectangle in drawn:
        assert rectangle["x"] + rectangle["width"] <= 1280
        assert colours(screenshot(browser, rectangle)) > 10


def test_the_numbers_in_the_page_are_those_of_the_run(browser, page, finished_run):
    browser.open(page)
    metrics = browser.run("JSON.parse(document.getElementById('data-metrics').textContent)")
    records = read_metrics(finished_run.metrics_file)
    for key, series in metrics.items():
        expected = [(record["step"], record[key]) for record in records if key in record]
        assert series["steps"] == [step for step, _ in expected]
        values = [np.nan if value is None else value for value in series["values"]]
        np.testing.assert_array_equal(values, [value for _, value in expected])
    assert metrics.keys() == {key for record in records for key in record} - {"step"}


def test_curves_lie_where_their_numbers_are(browser, page, finished_run):
    browser.open(page)
    records = [record for record in read_metrics(finished_run.metrics_file) if record["step"]]
    for title, key in (("Reward", "rollout/raw_reward"), ("Response length", "rollout/response_len_max")):
        chart = CHART.format(json.dumps(title))
        points = browser.run(f"{chart}.querySelector('[data-key=\"{key}\"]').getAttribute('d')")
        across, up = np.array([pair.split(",") for pair in re.split("[ML]", points)[1:]], float).T
        for axis, place, pixels, values in (
            ("step", "x", across, [record["step"] for record in records]),
            ("value", "y", up, [record[key] for record in records]),
        ):
            labels = f"[...{chart}.querySelectorAll('.tick.{axis}')]"
            numbers = browser.run(f"{labels}.map((one) => Number(one.textContent.replace(/,/g, '')))")
            at = browser.run(f"{labels}.map((one) => Number(one.getAttribute('{place}')))")
            slope, start = np.polyfit(at, numbers, 1)
            # Labels of values stand 4 px below their line.
            found = slope * (pixels + (4 if axis == "value" else 0)) + start
            np.testing.assert_allclose(found, values, atol=abs(slope) * 0.1)


def test_a_value_that_is_no_number_is_a_gap(browser, page):
    browser.open(page)
    path = f"{CHART.format(json.dumps('Gradient norm'))}.querySelector('.curve').getAttribute('d')"
    assert browser.run(path).count("M") == 2


def test_times_are_stacked_up_to_the_time_of_the_step(browser, page, finished_run):
    browser.open(page)
    chart = CHART.format(json.dumps("Time of a step"))
    browser.run(
        f"new Promise((done) => {{ const details = {chart}.querySelector('details');"
        "details.addEventListener('toggle', () => done(), {once: true}); details.open = true })"
    )
    rows = browser.run(
        f"[...{chart}.querySelectorAll('.numbers tr')].map((row) => [...row.cells].map((c) => c.textContent))"
    )
    assert rows[0] == [
        "step", "rollout", "score", "logprob", "update", "sync", "switch", "eval", "record", "save",
        "not measured",
    ]  # fmt: skip
    records = {record["step"]: record for record in read_metrics(finished_run.metrics_file)}
    assert len(rows) == 61
    for step, *seconds in rows[1:]:
        total = sum(float(text or 0) for text in seconds)
        assert total == pytest.approx(records[int(step)]["perf/step_time_s"], abs=0.01)
        assert float(seconds[-1]) == pytest.approx(0.1, abs=0.01)


def test_arrow_keys_read_a_step(browser, page, finished_run):
    browser.open(page)
    chart = CHART.format(json.dumps("Verdicts"))
    press = f"{chart}.querySelector('svg').dispatchEvent(new KeyboardEvent('keydown', {{key: '%s'}}))"
    for key in ("Home", "ArrowRight", "ArrowRight"):
        browser.run(press % key)
    assert browser.run(f"{chart}.classList.contains('reading')") is True
    text = browser.run(f"{chart}.querySelector('.reading-box').innerText")
    [record] = [record for record in read_metrics(finished_run.metrics_file) if record["step"] == 3]
    assert text.splitlines()[0] == "step 3"
    assert f"{record['rollout/verdict_correct']:.4g}" in text
    browser.run(press % "Escape")
    assert browser.run(f"{chart}.classList.contains('reading')") is False


def table(browser) -> list[list[str]]:
    rows = "[...document.querySelectorAll('.samples tbody tr:not([hidden])')]"
    return browser.run(f"{rows}.map((row) => [...row.cells].map((cell) => cell.textContent))")


def choose(browser, name: str, value: str) -> None:
    browser.run(
        f"(() => {{ const s = document.querySelector('select[data-name={name}]'); s.value = {json.dumps(value)};"
        "s.dispatchEvent(new Event('change')) })()"
    )


def search(browser, text: str) -> None:
    browser.run(
        f"(() => {{ const s = document.querySelector('input[type=search]'); s.value = {json.dumps(text)};"
        "s.dispatchEvent(new Event('input')) })()"
    )


def test_samples_are_paged_narrowed_down_and_searched(browser, page, finished_run):
    browser.open(page)
    status = "document.querySelector('.controls [role=status]').textContent"
    assert browser.run(status) == "1 to 20 of 960 samples"
    browser.run("[...document.querySelectorAll('.controls button')].at(-1).click()")
    assert browser.run(status) == "21 to 40 of 960 samples"
    choose(browser, "Step", "7")
    rows = table(browser)
    assert browser.run(status) == "1 to 16 of 16 samples"
    assert {row[1] for row in rows} == {"7"}
    saved = [s for group in read_rollouts(finished_run.rollout_file(7)) for s in group.samples]
    assert [(row[2], row[3], row[7]) for row in rows] == [
        (sample.prompt_id, sample.verdict.status, sample.finish_reason) for sample in saved
    ]
    choose(browser, "Verdict", "wrong")
    assert len(table(browser)) == sum(sample.verdict.status == "wrong" for sample in saved)
    choose(browser, "Verdict", "")
    search(browser, "  SAMPLE 2: ")
    assert len(table(browser)) == 4
    search(browser, "no such text")
    assert table(browser) == []
    assert browser.run(status) == "0 samples"


def test_a_sample_shows_its_texts_as_they_are(browser, page):
    browser.open(page)
    search(browser, "window.broken = 1")
    browser.run("document.querySelector('.samples tbody button').click()")
    response = browser.run("[...document.querySelectorAll('.detail pre')].at(-1).textContent")
    assert "</script><script>window.broken = 1</script>" in response
    assert browser.run("document.querySelector('.samples tbody button').getAttribute('aria-expanded')") == "true"
    search(browser, "null \x00 and bell")
    browser.run("document.querySelector('.samples tbody button').click()")
    assert "null \u2400 and bell \u2407" in browser.run("document.querySelector('.detail').textContent")
    assert browser.run("window.broken") is None


def test_the_page_follows_the_scheme_of_the_reader(browser, page):
    brightness = {}
    for scheme in ("light", "dark"):
        browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        browser.open(page)
        brightness[scheme] = screenshot(browser, {"x": 0, "y": 0, "width": 1280, "height": 900}).mean()
    browser.call("Emulation.setEmulatedMedia", features=[])
    assert brightness["light"] > 200
    assert brightness["dark"] < 60


def test_nothing_sticks_out_on_a_narrow_screen(browser, page):
    browser.open(page, width=420)
    assert browser.run("document.documentElement.scrollWidth") == 420


def test_a_run_without_a_step_says_so(browser, started_run):
    assert main(["report", str(started_run.path)]) == 0
    browser.open(started_run.path / "report.html")
    assert complaints(browser) == []
    text = browser.run("document.body.innerText")
    assert "There are no metrics yet: no step is finished." in text
    assert "There are no rollouts" in text
