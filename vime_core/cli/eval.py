"""`vime eval`: how well a policy does on held-out sets."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

from vime_core.cli.parser import Parser
from vime_core.cli.policy import add_policy, compose_policy, note, with_weights
from vime_core.config.compose import engines_only
from vime_core.config.overrides import quoted
from vime_core.config.schema import RunConfig
from vime_core.errors import RunFolderError, UserError
from vime_core.run.folder import RunFolder, check_writable

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from vime_core.config.composed import ComposedConfig
    from vime_core.loop.inputs import Inputs
    from vime_core.rollout.estimates import Mean
    from vime_core.rollout.results import EvalResult

DESCRIPTION = """Answer and judge held-out sets, and print accuracy, pass@k and verdicts.

The sets are the evals of the configuration, or the files of --data. Every sample is written to
FOLDER/rollouts/<set>.parquet, the numbers to FOLDER/results.json. Accuracies are means over prompts, with their 95 %
confidence interval; pass@k is the unbiased estimate of Chen et al. 2021.

examples:
  vime eval --run outputs/<date>/<run>
  vime eval --run outputs/<date>/<run> --step 40 --samples 8 --temperature 1
  vime eval model.path=/models/Qwen3-0.6B hardware=cpu --data gsm8k_test.parquet --max-prompts 200
"""

SETTINGS = {"samples": "samples_per_prompt", "temperature": "temperature", "max_prompts": "max_prompts"}
"""Argument -> the setting of each set that it is short for."""


def run(arguments: Sequence[str], *, show_traceback: bool) -> int:
    """Print the results."""
    options = _parser().parse_intermixed_args(arguments)
    if options.output is not None:
        _check_output(options.output)
    composed = _compose(options)
    # Imported late: they bring torch and ray, which no mistake in the configuration needs.
    from vime_core.loop.held_out import check_held_out, evaluate, plain_results
    from vime_core.loop.inputs import prepare

    inputs = prepare(composed, reads_data=False)
    check_held_out(inputs, options.k)
    inputs = with_weights(inputs, options)
    folder = _make_folder(inputs, options.output)
    note(f"folder: {folder.path}")
    results = evaluate(inputs, folder, note, options.k)
    if options.json:
        print(json.dumps({**plain_results(inputs, results), "folder": str(folder.path)}))
    else:
        print("\n".join(line for result in results for line in _lines(result)))
    return 0


def _parser() -> Parser:
    parser = Parser("eval", DESCRIPTION)
    add_policy(parser)
    parser.add_argument(
        "--data",
        action="append",
        default=[],
        metavar="FILE",
        help="a held-out set of this name, instead of those of the configuration; may be repeated",
    )
    parser.add_argument(
        "-n", "--samples", type=int, metavar="N", help="samples of each prompt; the set's when not given"
    )
    parser.add_argument("--temperature", type=float, metavar="T", help="0 is greedy; the set's when not given")
    parser.add_argument("--max-prompts", type=int, metavar="N", help="only the first so many prompts of each set")
    parser.add_argument(
        "--k", type=_numbers, default=[], metavar="K,...", help="of pass@k; 1, 2, 4, ... samples when not given"
    )
    parser.add_argument(
        "--output", type=Path, metavar="FOLDER", help="a new folder; <run.root>/<date>/<time>_eval when not given"
    )
    parser.add_argument("--json", action="store_true", help="print the numbers as one JSON object")
    return parser


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _compose(options: argparse.Namespace) -> ComposedConfig:
    added = {re.sub(r"\W+", "_", Path(file).stem): file for file in options.data}
    sets = [f"evals.{name}.path={quoted(file)}" for name, file in added.items()]
    composed = compose_policy(options, ["eval.every=0", *sets])
    known = [str(name) for name in composed.typed.evals]
    names = [*added] or known
    if not names:
        raise UserError("there is no held-out set: give one with --data FILE, or as evals.<name>.path=FILE")
    given = {key: getattr(options, name) for name, key in SETTINGS.items()}
    settings = [f"evals.{name}.{key}={value}" for name in names for key, value in given.items() if value is not None]
    left_out = [f"~evals.{name}" for name in known if name not in names]
    return engines_only(composed, ["eval.every=1", *settings, *left_out])


def _check_output(output: Path) -> None:
    """Before anything is done: what the command writes would lie among other files."""
    check_writable(output)
    if output.exists() and any(output.iterdir()):
        raise RunFolderError(f"{output} is not empty: give a new folder with --output")


def _make_folder(inputs: Inputs, output: Path | None) -> RunFolder:
    if output is None:
        folder = RunFolder.create(RunConfig(name="eval", root=inputs.config.run.root))
    else:
        folder = RunFolder.create_at(output)
    folder.write_config(inputs.composed.tree)
    return folder


def _lines(result: EvalResult) -> list[str]:
    verdicts = ", ".join(f"{status} {share:.3f}" for status, share in result.verdicts.items() if share)
    lines = [
        f"{result.name}: {result.prompts} prompts, samples of each: {result.samples_per_prompt}",
        f"  accuracy   {_interval(result.accuracy)}",
    ]
    if result.samples_per_prompt > 1:
        lines += [f"  {f'pass@{k}':<9}  {_interval(mean)}" for k, mean in result.pass_at.items()]
    return [
        *lines,
        f"  verdicts   {verdicts}",
        f"  responses  {result.response_len_mean:.1f} tokens on average, share cut: {result.truncated_ratio:.3f}",
    ]


def _interval(mean: Mean) -> str:
    known = mean.low is not None and mean.high is not None
    return f"{mean.value:.3f}" + (f"  (95 %: {mean.low:.3f} to {mean.high:.3f})" if known else "")
