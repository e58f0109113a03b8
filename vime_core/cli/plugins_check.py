"""`vime plugins check`: the conformance tests of components, each in a process of its own."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING

from vime_core.errors import PluginError, VimeError
from vime_core.plugins.chosen import choose
from vime_core.testing.runner import Checked, Result, check_component

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from vime_core.plugins.listing import ListedComponent
    from vime_core.plugins.manager import Plugins
    from vime_core.plugins.registration import Registered

DEADLINE_S = 600.0


def check(plugins: Plugins, name: str | None, *, deadline_s: float, as_json: bool, show_traceback: bool) -> int:
    """Check the components of a plugin or distribution, those of one name, or all; print what became of each.

    Returns:
        0, or 1 when a test or a plugin failed.

    Raises:
        PluginError: when nothing has that name, or the plugin is blocked.
    """
    choice = choose(plugins, name)
    blocked = [row for row in choice.others if row.status == "blocked"]
    if blocked:
        raise PluginError(f"plugin {blocked[0].plugin} ({blocked[0].distribution}) is blocked and cannot be checked")
    checked: list[Checked] = []
    for done in _checked(plugins, choice.registered, choice.others, deadline_s):
        checked.append(done)
        if not as_json:
            _print(done, show_traceback)
    failed = sum(done.outcome == "failed" for done in checked)
    if as_json:
        print(json.dumps([{**asdict(done), "outcome": done.outcome} for done in checked], indent=2))
    else:
        print(_summary(checked))
    return VimeError.exit_code if failed else 0


def _checked(
    plugins: Plugins, registered: list[Registered], others: list[ListedComponent], deadline_s: float
) -> Iterator[Checked]:
    for item in registered:
        conflict = plugins.conflict(item)
        if conflict:
            result = Result("name", "failed", conflict)
            yield Checked(item.entry.group, item.entry.name, item.plugin.name, [result])
        else:
            yield check_component(item, deadline_s)
    for row in others:
        outcome = Result("load", "failed" if row.status == "failed" else "skipped", row.detail)
        yield Checked("plugin", row.plugin, row.plugin, [outcome])


def _print(checked: Checked, show_traceback: bool) -> None:
    counts = Counter(result.outcome for result in checked.results)
    told = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
    print(f"{checked.outcome:<8}{checked.kind} {checked.name} ({checked.plugin}): {told}", flush=True)
    for result in checked.results:
        if result.outcome == "failed":
            print(f"  FAILED {result.test}: {result.detail}")
            if show_traceback and result.traceback:
                print(result.traceback)
    for reason, count in _reasons(checked.results).items():
        print(f"  {count} skipped: {reason}")
    missing = [result.test for result in checked.results if result.outcome == "not run"]
    if missing:
        print(f"  not run: {', '.join(missing)}")


def _summary(checked: list[Checked]) -> str:
    """Tests that passed, failed, were skipped (and why, when there is one reason) and did not run."""
    results = [result for done in checked for result in done.results]
    counts = Counter(result.outcome for result in results)
    reasons = list(_reasons(results))
    told = [f"{counts['passed']} passed", f"{counts['failed']} failed"]
    if reasons:
        told.append(f"{counts['skipped']} skipped ({reasons[0] if len(reasons) == 1 else 'see above'})")
    if counts["not run"]:
        told.append(f"{counts['not run']} not run")
    return f"{len(checked)} component{'s' * (len(checked) != 1)}: {', '.join(told)}"


def _reasons(results: Sequence[Result]) -> Counter[str]:
    return Counter(result.detail for result in results if result.outcome == "skipped")
