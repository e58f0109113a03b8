"""`vime verifier audit`: how often rewards are wrong."""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from omegaconf import OmegaConf

from vime_core.cli.parser import Parser, warn
from vime_core.config.compose import compose
from vime_core.errors import ConfigError, UserError
from vime_core.rewards.audit import audit, read_audit
from vime_core.rewards.pool import RewardPool, RewardSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vime_core.config.composed import ComposedConfig
    from vime_core.config.schema import RewardConfig, RewardPoolConfig
    from vime_core.plugins.entries import RewardEntry
    from vime_core.rewards.audit import AuditReport, AuditRow

DESCRIPTION = """Judge responses whose truth is known, and print how often each reward is wrong.

FILE is JSON lines with `response`, `ground_truth` and `correct`; without one the corpus that the reward's own package
brings is used. Exit status 1 when a reward is wrong about any row.
"""

MAX_SHOWN_CHARS = 100


def run(arguments: Sequence[str], *, show_traceback: bool) -> int:
    """Print one block for each reward."""
    options = _parse(arguments)
    names = options.reward or ["dapo_math"]
    composed = {name: _compose(name, options) for name in names}
    warn(composed[names[0]].plugins)
    given = None if options.file is None else read_audit(options.file)
    is_clean = True
    for name, its in composed.items():
        entry = cast("RewardEntry", its.components[f"rewards.{name}"].entry)
        rows = _corpus(entry) if given is None else given
        settings = cast("RewardConfig", _instance(its.typed.rewards[name]))
        spec = RewardSpec(name, entry.factory, settings, entry.text_only)
        with RewardPool([spec], config=cast("RewardPoolConfig", _instance(its.typed.reward_pool))) as pool:
            report = audit(pool, name, rows)
        _print(report, options.show)
        is_clean = is_clean and not report.failures
    return 0 if is_clean else 1


def _parse(arguments: Sequence[str]) -> Any:
    parser = Parser("verifier", DESCRIPTION)
    parser.add_argument("action", choices=["audit"])
    parser.add_argument("file", nargs="?", type=Path, metavar="FILE", help="rows to judge")
    parser.add_argument(
        "--reward", action="append", metavar="NAME", help="a reward; may be repeated; dapo_math when not given"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="key=value", help="a setting of the rewards, e.g. compat=official"
    )
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="scoring processes")
    parser.add_argument("--time-limit", type=float, default=10.0, metavar="SECONDS", help="for one verdict")
    parser.add_argument("--show", type=int, default=20, metavar="N", help="failing rows to print; -1 for all")
    options = parser.parse_intermixed_args(arguments)
    if options.workers > 4 * (os.cpu_count() or 1):
        raise UserError(f"--workers must be from 1 to {4 * (os.cpu_count() or 1)} here")
    if options.show < -1:
        raise UserError("--show must be -1, 0 or a number of rows")
    for setting in options.set:
        if "=" not in setting:
            raise UserError(f"--set {setting}: give it as key=value")
    return options


def _compose(name: str, options: Any) -> ComposedConfig:
    """The configuration of a run with this reward alone: its settings are checked as those of a run are."""
    return compose(
        [
            f"reward=[{name}]",
            *(f"rewards.{name}.{setting}" for setting in options.set),
            f"reward_pool.workers={options.workers}",
            f"reward_pool.time_limit_s={options.time_limit}",
        ],
        require_available=False,
    )


def _instance(settings: Any) -> Any:
    try:
        return OmegaConf.to_object(settings)
    except ValueError as error:  # from the settings' own check
        raise ConfigError(str(error).splitlines()[0]) from error


def _corpus(entry: RewardEntry) -> list[AuditRow]:
    if entry.corpus is None:
        raise UserError(f"reward {entry.name} brings no corpus; give a FILE of JSON lines")
    package, _, folder = entry.corpus.partition(":")
    found = sorted(Path(str(files(package))).joinpath(folder).glob("*.jsonl"))
    return [row for file in found for row in read_audit(file)]


def _print(report: AuditReport, most: int) -> None:
    total = report.counts.total()
    statuses = ", ".join(f"{count} {status}" for status, count in report.counts.most_common())
    print(f"{report.reward}: {total} rows: {statuses}")
    print(f"  false positives  {report.false_positives}")
    print(f"  false negatives  {report.false_negatives}")
    print(f"  without verdict  {report.silent}")
    print(f"  failing rows     {len(report.failures)}")
    for kind, count in report.by_kind().most_common():
        print(f"    {count:6d}  {kind or 'no class'}")
    for failure in report.failures[: most if most >= 0 else None]:
        row, verdict = failure.row, failure.verdict
        print(
            f"  {failure.what}: row {row.id}{f' [{row.kind}]' if row.kind else ''} expected {row.ground_truth[:40]!r}, "
            f"extracted {(verdict.extracted or '')[:40]!r} ({verdict.status}"
            f"{': ' + verdict.detail[:120] if verdict.detail else ''})"
        )
        print(f"    ...{row.response[-MAX_SHOWN_CHARS:]!r}")
