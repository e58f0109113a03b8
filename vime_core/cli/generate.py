"""`vime generate`: prompts through the engines of a run."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vime_core.cli.parser import Parser
from vime_core.cli.policy import add_policy, compose_policy, note, with_weights
from vime_core.config.compose import engines_only
from vime_core.config.schema import EvalSetConfig
from vime_core.data.config import FilesConfig
from vime_core.data.texts import make_prompts, read_chats, user_message
from vime_core.errors import UserError
from vime_core.run.folder import RunFolder

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from vime_core.config.composed import ComposedConfig
    from vime_core.loop.inputs import Inputs
    from vime_core.types import Group, Prompt, Sample

DESCRIPTION = """Sample answers to prompts, with the engines and the sampling settings of a run.

Prompts are those of --prompt and --file, else the lines of standard input. Each becomes a message of the user.

examples:
  vime generate model.path=/models/Qwen3-0.6B hardware=cpu --prompt "What is 12 + 30?"
  vime generate --run outputs/<date>/<run> --step 40 --file prompts.jsonl -n 4 --json
  vime generate --run outputs/<date>/<run> --temperature 0 < prompts.txt
"""

OVERRIDES = {
    "top_p": "rollout.top_p",
    "top_k": "rollout.top_k",
    "max_tokens": "rollout.max_response_tokens",
    "seed": "run.seed",
}
"""Argument -> the setting that it is short for."""


def run(arguments: Sequence[str], *, show_traceback: bool) -> int:
    """Print the answers."""
    options = _parser().parse_intermixed_args(arguments)
    given = _given(options)
    overrides = [f"{key}={value}" for key, (_, value) in given.items()]
    composed = engines_only(compose_policy(options, ["eval.every=0", *overrides]))
    flags = {key: flag for key, (flag, _) in given.items()}
    composed = replace(composed, provenance={**composed.provenance, **flags})
    # Imported late: they bring torch and ray, which no mistake in the configuration needs.
    from vime_core.loop.answer import answer, check_greedy
    from vime_core.loop.inputs import prepare
    from vime_core.loop.serving import serving

    sampling = _sampling(composed, options)
    check_greedy(sampling, f"--n {sampling.samples_per_prompt}")
    inputs = prepare(composed, reads_data=False)
    prompts = _prompts(inputs, options)
    inputs = with_weights(inputs, options)
    several = len(prompts) * sampling.samples_per_prompt > 1
    printer = _JsonPrinter(sampling.temperature == 0) if options.json else _TextPrinter(several)
    with _log_folder() as folder, serving(inputs, folder, note, scores=False) as engines:
        answer(engines, prompts, sampling, printer)
    return 0


def _parser() -> Parser:
    parser = Parser("generate", DESCRIPTION)
    add_policy(parser)
    parser.add_argument("-p", "--prompt", action="append", default=[], metavar="TEXT", help="a prompt; may be repeated")
    parser.add_argument(
        "-f",
        "--file",
        action="append",
        default=[],
        type=Path,
        metavar="FILE",
        help="prompts of a parquet or jsonl file, or the lines of a text file; may be repeated",
    )
    parser.add_argument("--system", metavar="TEXT", help="a system message before each prompt")
    parser.add_argument("--raw", action="store_true", help="take prompts as they are, without the chat template")
    parser.add_argument("-n", "--n", type=int, metavar="N", help="samples of each prompt; 1 when not given")
    parser.add_argument("--temperature", type=float, metavar="T", help="0 is greedy; the run's when not given")
    parser.add_argument("--top-p", type=float, metavar="P", help="the run's when not given")
    parser.add_argument("--top-k", type=int, metavar="K", help="the run's when not given")
    parser.add_argument(
        "--max-tokens", type=int, metavar="N", help="most tokens of an answer; the run's when not given"
    )
    parser.add_argument(
        "--seed", type=int, metavar="N", help="other answers to the same prompts; the run's when not given"
    )
    parser.add_argument("--json", action="store_true", help="print a JSON object for each sample, one a line")
    return parser


def _given(options: argparse.Namespace) -> dict[str, tuple[str, Any]]:
    """Setting -> the argument that was given for it, and its value."""
    arguments = {key: (f"--{name.replace('_', '-')}", getattr(options, name)) for name, key in OVERRIDES.items()}
    return {key: given for key, given in arguments.items() if given[1] is not None}


def _sampling(composed: ComposedConfig, options: argparse.Namespace) -> EvalSetConfig:
    count = 1 if options.n is None else options.n
    temperature = composed.config.rollout.temperature if options.temperature is None else options.temperature
    if count < 1:
        raise UserError(f"--n {count}: must be at least 1")
    if not 0 <= temperature < float("inf"):
        raise UserError(f"--temperature {temperature:g}: must be at least 0")
    return EvalSetConfig(path="", samples_per_prompt=count, temperature=temperature)


def _prompts(inputs: Inputs, options: argparse.Namespace) -> list[Prompt]:
    data = inputs.config.data
    key = data.prompt_key if isinstance(data, FilesConfig) else FilesConfig.prompt_key
    chats = [user_message(text) for text in options.prompt]
    for file in options.file:
        chats += read_chats(file, key)
    if not options.prompt and not options.file:
        if sys.stdin.isatty():
            note("prompts, one a line; Ctrl-D ends them:")
        chats = [user_message(line.rstrip("\n")) for line in sys.stdin if line.strip()]
    limit = inputs.config.rollout.max_prompt_tokens
    return make_prompts(chats, inputs.tokenizer, max_tokens=limit, system=options.system, raw=options.raw)


@contextmanager
def _log_folder() -> Iterator[RunFolder]:
    """For the logs of engines and router; it stays where an error may refer to it."""
    folder = RunFolder.create_at(Path(tempfile.mkdtemp(prefix="vime-generate-")))
    try:
        yield folder
    except KeyboardInterrupt:
        shutil.rmtree(folder.path)
        raise
    shutil.rmtree(folder.path)


class _TextPrinter:
    """Prints the text of each sample, below a line that says which one it is where there are several."""

    def __init__(self, headings: bool) -> None:
        self._headings = headings

    def __call__(self, group: Group) -> None:
        for sample in group.samples:
            if self._headings:
                length = len(sample.response_ids)
                print(f"--- prompt {sample.prompt_id}, sample {sample.index}: {length} tokens, {sample.finish_reason}")
            print(sample.response_text, flush=True)


class _JsonPrinter:
    """Prints an object for each sample. Greedy log-probs say nothing about the policy, so they are left out."""

    def __init__(self, greedy: bool) -> None:
        self._greedy = greedy

    def __call__(self, group: Group) -> None:
        for sample in group.samples:
            print(json.dumps(self._plain(group.prompt, sample)), flush=True)

    def _plain(self, prompt: Prompt, sample: Sample) -> dict[str, Any]:
        logprobs = None if self._greedy else [float(value) for value in sample.rollout_logprobs]
        return {
            "prompt": int(prompt.id),
            "sample": sample.index,
            "messages": [dict(message) for message in prompt.messages],
            "response": sample.response_text,
            "finish_reason": sample.finish_reason,
            "prompt_tokens": len(prompt.token_ids),
            "response_tokens": len(sample.response_ids),
            "token_ids": [int(token) for token in sample.response_ids],
            "logprobs": logprobs,
            "logprob": None if logprobs is None else sum(logprobs),
        }
