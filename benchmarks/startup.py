"""How much other plugins slow down the start: `python benchmarks/startup.py --plugins 200`.

Times `vime plugins list` with so many fake plugins installed against none, in turn, each in a fresh process, and takes
the medians. The exit status is 1 when the limit is not kept.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from vime_core.testing.distributions import FakeSite

DEADLINE_S = 300

HOOKS = """
    from dataclasses import dataclass

    from vime_core import RewardConfig, RewardEntry, hookimpl


    @dataclass(kw_only=True)
    class Settings(RewardConfig):
        strictness: int = 3
        \"\"\"How strict.\"\"\"


    @hookimpl
    def vime_rewards():
        return [RewardEntry(name="NAME", summary="a fake", config=Settings, factory="NAME.reward:Reward")]
"""


def main() -> int:
    """Measure, print, and compare with the limit."""
    parser = argparse.ArgumentParser(description="Time `vime plugins list` with many plugins against none.")
    parser.add_argument("--plugins", type=int, default=200, help="fake plugins")
    parser.add_argument("--repeat", type=int, default=7, help="runs of each")
    parser.add_argument("--limit", type=float, default=3.0, help="largest allowed ratio")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        many, none = Path(folder) / "many", Path(folder) / "none"
        none.mkdir()
        install(many, options.plugins)
        if listed(many) - listed(none) != options.plugins:
            raise SystemExit(f"not all of {options.plugins} fake plugins are listed")
        times: dict[Path, list[float]] = {many: [], none: []}
        for _ in range(options.repeat):
            for site, taken in times.items():
                taken.append(timed(site))
    with_plugins, without = (statistics.median(times[site]) for site in (many, none))
    ratio = with_plugins / without
    print(
        f"vime plugins list: {without:.2f} s without, {with_plugins:.2f} s with {options.plugins} plugins, {ratio:.2f}x"
    )
    print(f"limit: {options.limit:g}x, {'kept' if ratio <= options.limit else 'NOT kept'}")
    return int(ratio > options.limit)


def install(folder: Path, count: int) -> None:
    """Write so many distributions with one reward each."""
    site = FakeSite(folder)
    for index in range(count):
        name = f"fake{index}"
        site.install(f"vime-{name}", {name: f"{name}.hooks"}, {f"{name}/hooks.py": HOOKS.replace("NAME", name)})


def listed(site: Path) -> int:
    """Rewards in the list; the first run also writes the byte code, as an installation does."""
    done = run(site, "--json")
    return sum(row["kind"] == "reward" for row in json.loads(done.stdout))


def timed(site: Path) -> float:
    """Seconds of one run."""
    begin = time.perf_counter()
    run(site)
    return time.perf_counter() - begin


def run(site: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """`vime plugins list` in a process that sees the folder."""
    return subprocess.run(
        [sys.executable, "-m", "vime_core.cli", "plugins", "list", *options],
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )


if __name__ == "__main__":
    sys.exit(main())
