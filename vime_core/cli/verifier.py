"""`vime verifier audit`: how often rewards are wrong."""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from vime_core.cli.parser import Parser, warn
from vime_core.config.schema import RewardPoolConfig
from vime_core.errors import ConfigError, UserError
from vime_core.plugins.manager import load_plugins
from vime_core.rewards.audit import audit, read_audit
from vime_core.rewards.pool import RewardPool, RewardSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vime_core.config.schema import RewardConfig
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
    plugins = load_plugins()
    warn(plugins)
    entries = [cast("RewardEntry", plugins.select("reward", name)) for name in options.reward or ["dapo_math"]]
    given = None if options.file is None else read_audit(options.file)
    pool_config = RewardPoolConfig(workers=options.workers, time_limit_s=options.time_limit)
    is_clean = True
    for entry in entries:
        rows = _corpus(entry) if given is None else given
        spec = RewardSpec(entry.name, entry.factory, _settings(entry, options.set))
        with RewardPool([spec], config=pool_config) as pool:
            report = audit(pool, entry.name, rows)
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
    if options.workers < 1 or options.workers > 4 * (os.cpu_count() or 1):
        raise UserError(f"--workers must be from 1 to {4 * (os.cpu_count() or 1)} here")
    if not options.time_limit > 0:
        raise UserError("--time-limit must be above 0")
    return options


def _settings(entry: RewardEntry, overrides: Sequence[str]) -> RewardConfig:
    """The reward's settings, checked as those of a run are.

    Raises:
        ConfigError: names the setting and what is wrong with it.
    """
    try:
        merged = OmegaConf.merge(OmegaConf.structured(entry.config), OmegaConf.from_dotlist(list(overrides)))
        return cast("RewardConfig", OmegaConf.to_object(merged))
    except OmegaConfBaseException as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"--set does not fit reward {entry.name}: {reason}") from error
    except ValueError as error:
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
            f"  {failure.what}: row {row.id} [{row.kind}] expected {row.ground_truth[:40]!r}, "
            f"extracted {(verdict.extracted or '')[:40]!r} ({verdict.status}"
            f"{': ' + verdict.detail[:120] if verdict.detail else ''})"
        )
        print(f"    ...{row.response[-MAX_SHOWN_CHARS:]!r}")
