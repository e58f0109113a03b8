"""`vime train`: compose, check, run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vime_core.cli.jobs import run_jobs
from vime_core.cli.parser import Parser, add_overrides, warn
from vime_core.config.compose import compose
from vime_core.config.location import conf_folder
from vime_core.config.overrides import expand_sweep
from vime_core.config.render import render
from vime_core.config.slots import AUTO_CONFIGS, FILE_GROUPS, SEVERAL, SINGLE
from vime_core.plugins.kinds import AUTO
from vime_core.plugins.manager import load_plugins

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from vime_core.config.composed import ComposedConfig

DESCRIPTION = """Train a model.

examples:
  vime train experiment=quickstart
  vime train model.path=/models/Qwen3-8B data.train=/data/dapo-math-17k.parquet train.steps=100
  vime train experiment=quickstart train.lr=1e-6,2e-6 --multirun
  vime train --config outputs/<date>/<run>/config.yaml train.steps=200
"""


def run(arguments: Sequence[str], *, show_traceback: bool) -> int:
    """Train; returns the exit status of the run."""
    parser = _parser()
    if {"-h", "--help"} & set(arguments):
        parser.epilog = _choices()
    options = parser.parse_intermixed_args(arguments)
    if options.multirun:
        jobs = expand_sweep(options.overrides)
        for job in jobs:
            _compose(job, options)
        return run_jobs(jobs, _forwarded(options, show_traceback))
    composed = _compose(options.overrides, options)
    warn(composed.plugins)
    if options.cfg:
        print(render(composed.tree), end="")
        return 0
    # Imported late: it brings torch and ray, which no mistake in the configuration needs.
    from vime_core.loop.train import run as train

    return train(composed)


def _parser() -> Parser:
    parser = Parser("train", DESCRIPTION)
    add_overrides(parser)
    parser.add_argument("-m", "--multirun", action="store_true", help="run every combination of listed values in turn")
    parser.add_argument("--cfg", choices=["job"], help="print the configuration instead of running")
    return parser


def _compose(overrides: Sequence[str], options: argparse.Namespace) -> ComposedConfig:
    composed = compose(
        overrides, config_file=options.config, config_folder=options.config_dir, require_available=not options.cfg
    )
    if not options.cfg:
        composed.check_complete()
    return composed


def _forwarded(options: argparse.Namespace, show_traceback: bool) -> list[str]:
    forwarded = ["--traceback"] if show_traceback else []
    for name, value in (("--config", options.config), ("--config-dir", options.config_dir), ("--cfg", options.cfg)):
        forwarded += [name, str(value)] if value else []
    return forwarded


def _choices() -> str:
    plugins = load_plugins()
    names = {group: list(plugins.entries(group)) for group in (*SINGLE, *SEVERAL)}
    for group in AUTO_CONFIGS:
        names[group].insert(0, AUTO)
    for group in FILE_GROUPS:
        folders = [conf_folder(), *plugins.conf_folders]
        names[group] = sorted({file.stem for folder in folders for file in (folder / group).glob("*.yaml")})
    width = max(map(len, names))
    lines = [f"  {group:<{width}}  {', '.join(known) or '-'}" for group, known in names.items()]
    several = f"several of a kind: {', '.join(f'{group}=[a,b]' for group in (*SEVERAL, *FILE_GROUPS))}"
    return "\n".join(["choices (group=name):", *lines, "", several, "all keys and their defaults: vime config"])
