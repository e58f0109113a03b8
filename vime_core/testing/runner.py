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
from textwrap import shorten
from typing import TYPE_CHECKING, Literal
from unittest import SkipTest

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from vime_core.plugins.registration import Registered
    from vime_core.testing.suite import ComponentSuite

Outcome = Literal["passed", "failed", "skipped", "not run"]

SETUP = "setup"
"""Stands for the test in the result of a component whose tests cannot begin."""

OUTPUT_TAIL = 300
"""Characters of the output that are told when a process dies."""


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one test."""

    test: str
    outcome: Outcome
    detail: str = ""
    """Why it failed, was skipped or did not run; one line."""
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
    return list(_run_each(suite, [name for name in _tests(suite) if not only or name in only], lambda name: None))


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
    tests = _tests(suite)
    with Path(file).open("w", encoding="utf-8") as output:

        def write(line: object) -> None:
            print(json.dumps(line), file=output, flush=True)

        write({"tests": tests})
        for result in _run_each(suite, tests, lambda test: write({"begun": test})):
            write(asdict(result))


def _tests(suite: type[ComponentSuite]) -> list[str]:
    """Those of the base first, each class in the order in which it defines them."""
    defined = dict.fromkeys(name for owner in reversed(suite.__mro__) for name in vars(owner))
    return [name for name in defined if name.startswith("test_") and inspect.isfunction(getattr(suite, name))]


def _run_each(suite: type[ComponentSuite], names: Sequence[str], begin: Callable[[str], None]) -> Iterator[Result]:
    """One result for each test, as soon as it is there; `begin` is called before each."""
    begin(SETUP)
    try:
        suite.setup_class()
    except SkipTest as reason:
        yield from (Result(name, "skipped", str(reason)) for name in names)
        return
    except Exception as error:
        yield _failure(SETUP, error)
        yield from (Result(name, "not run") for name in names)
        return
    for name in names:
        begin(name)
        yield _run_test(suite, name)


def _run_test(suite: type[ComponentSuite], name: str) -> Result:
    try:
        getattr(suite(), name)()
    except SkipTest as reason:
        return Result(name, "skipped", str(reason))
    except Exception as error:
        return _failure(name, error)
    return Result(name, "passed")


def _failure(name: str, error: Exception) -> Result:
    told = str(error) if isinstance(error, AssertionError) and str(error) else f"{type(error).__name__}: {error}"
    return Result(name, "failed", " ".join(told.split()), "".join(traceback.format_exception(error)))


def _read(file: Path, otherwise: str) -> list[Result]:
    """What was written; a test that was begun and not finished has failed, for the reason given, and ended the rest."""
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []
    if not lines:
        return [Result("start", "failed", otherwise)]
    results = [Result(**line) for line in lines if "test" in line]
    if "test" not in lines[-1]:
        results.append(Result(lines[-1].get("begun", "start"), "failed", otherwise))
    done = {result.test for result in results}
    return [*results, *(Result(name, "not run") for name in lines[0]["tests"] if name not in done)]


def _tail(text: str) -> str:
    """The last whole lines, at least one; of a long one its begin."""
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
    if not lines:
        return "it printed nothing"
    told = [lines.pop()]
    while lines and sum(map(len, told)) + len(lines[-1]) < OUTPUT_TAIL:
        told.insert(0, lines.pop())
    return shorten("; ".join(told), OUTPUT_TAIL, placeholder=" ...")


if __name__ == "__main__":
    main(sys.argv[1:])
