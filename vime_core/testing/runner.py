"""Runs a conformance suite without pytest, in a process of its own.

python -m vime_core.testing.runner <kind> <name> <plugin> <distribution> <result file>
"""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from unittest import SkipTest

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from vime_core.plugins.registration import Registered
    from vime_core.testing.suite import ComponentSuite

Outcome = Literal["passed", "failed", "skipped"]

OUTPUT_TAIL = 300
"""Characters of the output that are told when a process dies."""


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one test."""

    test: str
    outcome: Outcome
    detail: str = ""
    """Why it failed or was skipped; one line."""
    traceback: str = ""
    """Of a failure."""


@dataclass(frozen=True, slots=True)
class Checked:
    """What became of one component."""

    kind: str
    name: str
    plugin: str
    results: Sequence[Result]

    @property
    def outcome(self) -> Outcome:
        """`failed` when any test did; `skipped` when none ran."""
        outcomes = Counter(result.outcome for result in self.results)
        return "failed" if outcomes["failed"] else "passed" if outcomes["passed"] else "skipped"


def run_suite(suite: type[ComponentSuite], only: Collection[str] = ()) -> list[Result]:
    """Run all tests of a suite, or those of the given names, in their order."""
    names = [name for name, _ in inspect.getmembers(suite, inspect.isfunction) if name.startswith("test_")]
    chosen = [name for name in _in_order(suite, names) if not only or name in only]
    try:
        suite.setup_class()
    except SkipTest as reason:
        return [Result(name, "skipped", str(reason)) for name in chosen]
    return [_run_test(suite, name) for name in chosen]


def check_component(registered: Registered, deadline_s: float) -> Checked:
    """Run the suite of a component in a fresh process, so that one that crashes or hangs is told like any other.

    Args:
        registered: the component.
        deadline_s: seconds for the whole suite.
    """
    entry, plugin = registered.entry, registered.plugin
    with tempfile.TemporaryDirectory(prefix="vime-check-") as folder:
        file = Path(folder) / "results.json"
        where = [entry.group, entry.name, plugin.name, plugin.distribution, str(file)]
        command = [sys.executable, "-m", "vime_core.testing.runner", *where]
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=deadline_s, check=False
            )
            results = _read(
                file, f"the process ended with status {done.returncode}: {_tail(done.stdout + done.stderr)}"
            )
        except subprocess.TimeoutExpired:
            results = _read(file, f"not finished after {deadline_s:g} s")
    return Checked(entry.group, entry.name, plugin.name, results)


def main(arguments: Sequence[str]) -> None:
    """Check one component, and write each result as soon as it is there."""
    from vime_core.plugins.manager import load_plugins
    from vime_core.testing.suite import suite_for
    from vime_core.testing.suites import SUITES

    warnings.simplefilter("ignore")
    kind, name, plugin, distribution, file = arguments
    [registered] = [
        item
        for item in load_plugins().registered
        if (item.entry.group, item.entry.name, item.plugin.name, item.plugin.distribution)
        == (kind, name, plugin, distribution)
    ]
    suite = suite_for(SUITES[kind], registered)
    with Path(file).open("w", encoding="utf-8") as output:
        for test in _in_order(suite, [item for item in dir(suite) if item.startswith("test_")]):
            print(json.dumps({"begun": test}), file=output, flush=True)
            [result] = run_suite(suite, [test])
            print(json.dumps(asdict(result)), file=output, flush=True)


def _in_order(suite: type[ComponentSuite], names: Collection[str]) -> list[str]:
    """Those of the base first, each class in the order in which it defines them."""
    defined = dict.fromkeys(name for owner in reversed(suite.__mro__) for name in vars(owner))
    return [name for name in defined if name in names]


def _run_test(suite: type[ComponentSuite], name: str) -> Result:
    try:
        getattr(suite(), name)()
    except SkipTest as reason:
        return Result(name, "skipped", str(reason))
    except Exception as error:
        told = str(error) if isinstance(error, AssertionError) and str(error) else f"{type(error).__name__}: {error}"
        return Result(name, "failed", " ".join(told.split()), traceback.format_exc())
    return Result(name, "passed")


def _read(file: Path, otherwise: str) -> list[Result]:
    """What was written; a test that was begun and not finished has failed, for the reason given."""
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []
    results = [Result(**line) for line in lines if "begun" not in line]
    if not lines:
        return [Result("start", "failed", otherwise)]
    if "begun" in lines[-1]:
        results.append(Result(lines[-1]["begun"], "failed", otherwise))
    return results


def _tail(text: str) -> str:
    return " ".join(text[-OUTPUT_TAIL:].split()) or "it printed nothing"


if __name__ == "__main__":
    main(sys.argv[1:])
