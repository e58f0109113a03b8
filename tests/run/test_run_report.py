import logging
import pickle
import random
import subprocess
import sys
from dataclasses import replace
from io import StringIO

import numpy as np
import pytest

from vime_core.errors import ConfigError, PluginError
from vime_core.log import log_to
from vime_core.plugins.interfaces import Observer
from vime_core.randomness import random_state
from vime_core.run.metrics import MetricsWriter, read_metrics
from vime_core.run.observers import Observers
from vime_core.run.progress import Progress
from vime_core.run.report import Reporter
from vime_core.testing.prompts import make_prompt
from vime_core.testing.samples import make_sample
from vime_core.types import Group, Verdict, keep_parts

METRICS = {
    "rollout/raw_reward": 0.5,
    "train/train_rollout_logprob_abs_diff": 1.234e-7,
    "perf/tokens_per_gpu_per_second": 12345.6,
    "perf/step_time_s": 30.0,
}


class Terminal(StringIO):
    def isatty(self):
        return True


class Recorder(Observer):
    def __init__(self):
        self.told = []

    def run_started(self, config):
        self.told.append(("run_started", dict(config)))

    def groups_scored(self, step, groups):
        self.told.append(("groups_scored", step, len(groups)))

    def step_finished(self, step, metrics):
        self.told.append(("step_finished", step, dict(metrics)))

    def run_finished(self, reason):
        self.told.append(("run_finished", reason))


class Broken(Observer):
    def step_finished(self, step, metrics):
        raise KeyError("first\nsecond")

    def run_finished(self, reason):
        raise OSError("no network")


class ListTracker:
    def __init__(self, fail_at=None, fail_to_close=False):
        self.logged = []
        self.closed = 0
        self.fail_at = fail_at
        self.fail_to_close = fail_to_close

    def log(self, step, metrics):
        if step == self.fail_at:
            raise ConnectionError("server is\ndown")
        self.logged.append((step, dict(metrics)))

    def close(self):
        self.closed += 1
        if self.fail_to_close:
            raise ConnectionError("server is down")


@pytest.fixture
def make(tmp_path):
    made = []

    def make_reporter(trackers=None, observers=None):
        out = StringIO()
        made_by = [
            {name: lambda part=part: part for name, part in (parts or {}).items()} for parts in (trackers, observers)
        ]
        reporter = Reporter(MetricsWriter(tmp_path / "metrics.jsonl"), Progress(10, out), *made_by)
        made.append(reporter)
        return reporter, out

    yield make_reporter
    for reporter in made:
        reporter.close()


def test_everyone_is_told(make, tmp_path):
    tracker, observer = ListTracker(), Recorder()
    reporter, out = make({"list": tracker}, {"recorder": observer})
    reporter.run_started({"a": 1})
    reporter.groups_scored(1, [])
    reporter.log(1, METRICS)
    reporter.note("hello")
    reporter.run_finished("done")
    reporter.close()
    reporter.close()
    assert read_metrics(tmp_path / "metrics.jsonl") == [{"step": 1, **METRICS}]
    assert tracker.logged == [(1, METRICS)]
    assert tracker.closed == 1
    assert observer.told == [
        ("run_started", {"a": 1}),
        ("groups_scored", 1, 0),
        ("step_finished", 1, METRICS),
        ("run_finished", "done"),
    ]
    assert out.getvalue().splitlines()[-1] == "hello"


def test_a_tracker_that_fails_is_named_once_and_switched_off(make, tmp_path, caplog):
    failing, healthy = ListTracker(fail_at=2), ListTracker()
    reporter, out = make({"failing": failing, "healthy": healthy})
    for step in (1, 2, 3):
        reporter.log(step, {})
    reporter.close()
    warning = "tracker failing failed and is switched off: ConnectionError: server is down"
    assert out.getvalue().count(f"warning: {warning}\n") == 1
    [record] = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert record.getMessage() == warning
    assert record.exc_info[0] is ConnectionError
    assert [step for step, _ in failing.logged] == [1]
    assert [step for step, _ in healthy.logged] == [1, 2, 3]
    assert (failing.closed, healthy.closed) == (0, 1)
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == 3


def test_a_tracker_that_fails_to_close_is_named(make):
    reporter, out = make({"failing": ListTracker(fail_to_close=True)})
    reporter.close()
    assert "warning: tracker failing failed" in out.getvalue()


def test_an_observer_that_fails_stops_the_run(make, tmp_path):
    reporter, _ = make(observers={"broken": Broken()})
    with pytest.raises(PluginError) as caught:
        reporter.log(3, {"a": 1.0})
    expected = "observer broken failed in step_finished at step 3: KeyError: 'first\\nsecond'; mend it or leave it out"
    assert str(caught.value).startswith(expected)
    assert isinstance(caught.value.__cause__, KeyError)
    assert [record["step"] for record in read_metrics(tmp_path / "metrics.jsonl")] == [3]


def test_at_the_end_every_observer_is_told_and_the_first_cause_stays_first(make):
    recorder = Recorder()
    reporter, out = make(observers={"broken": Broken(), "recorder": recorder})
    reporter.run_finished("engine 0 died")
    assert "warning: observer broken failed in run_finished: OSError: no network" in out.getvalue()
    with pytest.raises(PluginError, match="observer broken failed in run_finished"):
        reporter.run_finished("done")
    assert recorder.told == [("run_finished", "engine 0 died"), ("run_finished", "done")]


class Spoils(Recorder):
    """Changes whatever it is given."""

    def run_started(self, config):
        config["a"]["b"] = 2

    def groups_scored(self, step, groups):
        self.told.append([sample.verdict.score for group in groups for sample in group.samples])
        for group in groups:
            group.prompt.metadata["seen"] = True
            group.samples[0].loss_mask[:] = False
            group.samples[0].metadata["rewards"]["a"]["score"] = 9.0
            group.samples[0].verdict = Verdict(9.0, "correct")
            group.samples.pop()
        groups.clear()

    def step_finished(self, step, metrics):
        metrics.clear()
        random.seed(0)
        np.random.seed(0)


def test_what_an_observer_does_to_what_it_is_given_reaches_nobody(make):
    one, other = Spoils(), Spoils()
    tracker = ListTracker()
    reporter, _ = make({"list": tracker}, {"one": one, "other": other})
    config, metrics = {"a": {"b": 1}}, dict(METRICS)
    samples = [make_sample(2, 3, index=index, score=float(index)) for index in range(2)]
    keep_parts(samples[0], {"a": Verdict(1.0, "wrong")})
    groups = [Group("g", replace(make_prompt(), metadata={}), samples)]
    before, state = pickle.dumps((config, groups, metrics)), random_state()
    reporter.run_started(config)
    reporter.groups_scored(1, groups)
    reporter.log(1, metrics)
    assert pickle.dumps((config, groups, metrics)) == before
    assert random_state() == state
    assert one.told == other.told == [[0.0, 1.0]]
    assert tracker.logged == [(1, METRICS)]


def test_groups_are_copied_only_for_who_looks_at_them(make):
    class Uncopied:
        def __deepcopy__(self, memo):
            raise AssertionError("copied for nobody")

    class Blind(Observer):
        pass

    reporter, _ = make(observers={"blind": Blind()})
    reporter.groups_scored(1, [Uncopied()])


class Ends(Recorder):
    def __init__(self, reason, at=2):
        super().__init__()
        self.reason = reason
        self.at = at

    def step_finished(self, step, metrics):
        super().step_finished(step, metrics)
        return self.reason if step == self.at else None


def test_an_observer_can_end_the_run(make):
    first, second, last = Ends("reward is\nhigh enough"), Ends("another reason"), Recorder()
    reporter, out = make(observers={"first": first, "second": second, "last": last})
    reporter.log(1, METRICS)
    assert reporter.stop_reason is None
    reporter.log(2, METRICS)
    assert reporter.stop_reason == "observer first: reward is high enough"
    assert "stopping after step 2, observer first: reward is high enough" in out.getvalue().splitlines()
    assert [step for _, step, _ in last.told] == [1, 2]
    reporter.run_finished(reporter.stop_reason)
    assert last.told[-1] == ("run_finished", "observer first: reward is high enough")


def test_an_observer_that_fails_at_the_end_of_a_stopped_run_is_an_error(make):
    reporter, _ = make(observers={"ends": Ends("enough", at=0), "broken": Broken()})
    with pytest.raises(PluginError, match="observer broken failed in step_finished"):
        reporter.log(0, {})
    reporter, _ = make(observers={"ends": Ends("enough", at=1)})
    reporter.log(1, {})
    reporter._observers = Observers({"broken": Broken})
    with pytest.raises(PluginError, match="observer broken failed in run_finished: OSError: no network"):
        reporter.run_finished(reporter.stop_reason)


@pytest.mark.parametrize("answer", [True, 3, "", " "])
def test_an_answer_that_is_no_reason_is_the_observers_fault(make, answer):
    reporter, _ = make(observers={"odd": Ends(answer)})
    with pytest.raises(PluginError) as caught:
        reporter.log(2, METRICS)
    assert f"observer odd failed in step_finished at step 2: it returned {answer!r}, which must be" in str(caught.value)


def leave(*_):
    raise SystemExit(0)


def test_an_observer_that_leaves_the_process_is_named(make):
    class Leaving(Observer):
        groups_scored = leave

    reporter, _ = make(observers={"leaving": Leaving()})
    with pytest.raises(PluginError, match="observer leaving failed in groups_scored at step 1: SystemExit: 0"):
        reporter.groups_scored(1, [])


def test_an_observer_without_a_method_is_named(make):
    reporter, _ = make(observers={"empty": object()})
    with pytest.raises(PluginError, match="observer empty failed in groups_scored at step 1: AttributeError"):
        reporter.groups_scored(1, [])


def test_a_tracker_that_leaves_the_process_is_switched_off(make):
    tracker = ListTracker()
    tracker.log = leave
    reporter, out = make({"leaving": tracker})
    reporter.log(1, METRICS)
    assert "warning: tracker leaving failed and is switched off: SystemExit: 0" in out.getvalue()


def made(tmp_path, trackers=None, observers=None):
    out = StringIO()
    return Reporter(MetricsWriter(tmp_path / "made.jsonl"), Progress(10, out), trackers or {}, observers or {}), out


def fail_with(error):
    def make(*_):
        raise error

    return make


def test_a_tracker_that_cannot_be_made_is_switched_off(tmp_path):
    healthy = ListTracker()
    trackers = {"failing": fail_with(ConnectionError("server is down")), "healthy": lambda: healthy}
    reporter, out = made(tmp_path, trackers)
    reporter.log(1, {})
    reporter.close()
    assert "warning: tracker failing failed and is switched off: ConnectionError: server is down" in out.getvalue()
    assert len(healthy.logged) == healthy.closed == 1


def test_wrong_settings_of_a_tracker_or_observer_are_the_users_to_mend(tmp_path):
    healthy = ListTracker()
    trackers = {"healthy": lambda: healthy, "failing": fail_with(ConfigError("no such project"))}
    with pytest.raises(ConfigError, match=r"^no such project$"):
        made(tmp_path, trackers)
    assert healthy.closed == 1
    with pytest.raises(ConfigError, match=r"^no such metric$"):
        made(tmp_path, observers={"failing": fail_with(ConfigError("no such metric"))})


def test_an_observer_that_cannot_be_made_is_named(tmp_path):
    with pytest.raises(PluginError, match="observer failing failed in its start: OSError: no network"):
        made(tmp_path, observers={"failing": fail_with(OSError("no network"))})


def test_plain_lines_where_there_is_no_terminal():
    out = StringIO()
    progress = Progress(10, out)
    progress.step(0, {"eval/gsm8k/accuracy": 0.25, "eval/math/accuracy": 0.5, "eval/math/failed": 1.0})
    progress.step(1, METRICS)
    progress.step(2, METRICS | {"perf/step_time_s": 60.0})
    progress.note("[bold]as it is[/bold] " + "long " * 50)
    progress.close()
    assert out.getvalue().splitlines() == [
        "step 0: gsm8k accuracy 0.250  math accuracy 0.500",
        "step 0/10",
        "step 1/10  reward 0.500  log-prob difference 1.2e-07  tokens/s 12,346  left 0:04:30",
        "step 2/10  reward 0.500  log-prob difference 1.2e-07  tokens/s 12,346  left 0:06:00",
        "[bold]as it is[/bold] " + "long " * 50,
    ]


def test_one_live_line_on_a_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    progress = Progress(10, out)
    progress.step(1, METRICS)
    progress.note("a note")
    progress.step(2, METRICS)
    progress.close()
    progress.close()
    text = out.getvalue()
    assert "\x1b[2K" in text  # the live line is erased and drawn again
    assert text.rindex("step 2/10") > text.index("a note") > text.index("step 1/10")


def test_a_metric_that_is_not_finite_is_shown():
    out = StringIO()
    Progress(10, out).step(1, {"rollout/raw_reward": float("nan")})
    assert out.getvalue() == "step 1/10  reward nan\n"


def test_log_has_one_line_an_event_with_its_actor(tmp_path):
    path = tmp_path / "log.txt"
    root_level = logging.getLogger().level
    with log_to(path, "trainer 0"):
        logging.getLogger("vime_acme.part").info("one\ntwo %d", 3)
        logging.getLogger("vime_core.x").debug("hidden")
        logging.getLogger("other").info("hidden")
        logging.getLogger("other").warning("shown")
        logging.getLogger("vime_core.x").info("100 %%", extra={"actor": "router"})
        try:
            1 / 0  # noqa: B018
        except ZeroDivisionError:
            logging.getLogger("vime_core.x").exception("failed")
    logging.getLogger("vime_core.x").warning("hidden")
    assert logging.getLogger().level == root_level
    lines = path.read_text().splitlines()
    events = [line for line in lines if not line.startswith("    ")]
    assert [line.split(" ", 2)[2] for line in events] == [
        "INFO    trainer 0: one\\ntwo 3 (vime_acme.part)",
        "WARNING trainer 0: shown (other)",
        "INFO    router: 100 %% (vime_core.x)",
        "ERROR   trainer 0: failed (vime_core.x)",
    ]
    assert lines[-1] == "    ZeroDivisionError: division by zero"


def test_several_processes_write_whole_lines_to_one_log(tmp_path):
    code = """
import logging, sys
from pathlib import Path
from vime_core.log import log_to
with log_to(Path(sys.argv[1]), sys.argv[2]):
    for number in range(200):
        logging.getLogger("vime_core").info("%s", "x" * 200)
"""
    path = tmp_path / "log.txt"
    writers = [subprocess.Popen([sys.executable, "-c", code, str(path), f"rank {rank}"]) for rank in range(3)]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    lines = path.read_text().splitlines()
    assert len(lines) == 600
    assert all(line.endswith(f": {'x' * 200} (vime_core)") for line in lines)
