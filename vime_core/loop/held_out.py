"""Held-out sets answered and judged by engines alone, outside a run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from vime_core.loop.answer import check_greedy
from vime_core.loop.serving import VERSION, serving
from vime_core.rewards.failures import check_failures
from vime_core.rollout.evaluate import Evaluator
from vime_core.rollout.results import choose_ks, eval_result
from vime_core.run.atomic import write_text
from vime_core.run.rollouts import write_rollouts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from vime_core.loop.inputs import Inputs
    from vime_core.rollout.evaluate import EvalSet
    from vime_core.rollout.results import EvalResult
    from vime_core.run.folder import RunFolder
    from vime_core.types import Group

RESULTS_FILE = "results.json"
NOTES = 10
"""How often at most it is told how far a set is."""


def check_held_out(inputs: Inputs, ks: Sequence[int]) -> None:
    """Check what can be checked before a process starts.

    Raises:
        ConfigError: when samples are greedy and several, or pass@k asks for more than there are.
    """
    for eval_set in inputs.eval_sets:
        check_greedy(eval_set.config, f"evals.{eval_set.name}")
        choose_ks(eval_set.config.samples_per_prompt, ks)


def evaluate(inputs: Inputs, folder: RunFolder, note: Callable[[str], None], ks: Sequence[int]) -> list[EvalResult]:
    """Answer and judge all held-out sets; writes each sample and the results.

    Args:
        inputs: of a configuration of engines alone, with held-out sets.
        folder: gets `rollouts/<set>.parquet`, `results.json` and logs.
        note: told what is going on.
        ks: of pass@k; chosen by the number of samples when empty.

    Raises:
        VimeError: the first cause, when a part fails.
        KeyboardInterrupt: on Ctrl-C and SIGTERM, once everything has ended.
    """
    config = inputs.config
    results = []
    with serving(inputs, folder, note, scores=True) as engines:
        makers = (inputs.function, engines.rollout, engines.judge, inputs.tokenizer)
        stop_ids = inputs.model.geometry.eos_token_ids
        evaluator = Evaluator(inputs.eval_sets, *makers, config.rollout, config.run.seed, stop_ids)
        for eval_set in inputs.eval_sets:
            progress = _Progress(eval_set, note)
            groups = engines.wait_for(evaluator.groups(eval_set, VERSION, progress.finished))
            check_failures(groups, config.reward_pool.max_failure_ratio)
            samples = eval_set.config.samples_per_prompt
            write_rollouts(folder.rollouts / f"{eval_set.name}.parquet", groups, {})
            results.append(eval_result(eval_set.name, groups, samples, choose_ks(samples, ks)))
    write_text(folder.path / RESULTS_FILE, json.dumps(plain_results(inputs, results), indent=1) + "\n")
    return results


def plain_results(inputs: Inputs, results: Sequence[EvalResult]) -> dict[str, Any]:
    """Plain values, for JSON."""
    return {"model": str(inputs.model.path), "seed": inputs.config.run.seed, "sets": [r.plain() for r in results]}


class _Progress:
    """Says how far a set is, a few times."""

    def __init__(self, eval_set: EvalSet, note: Callable[[str], None]) -> None:
        self._name = eval_set.name
        self._total = len(eval_set.prompts)
        self._note = note
        self._done = 0

    def finished(self, group: Group) -> None:
        self._done += 1
        if self._done * NOTES // self._total > (self._done - 1) * NOTES // self._total:
            self._note(f"{self._name}: {self._done} of {self._total} prompts")
