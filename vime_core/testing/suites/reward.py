"""Conformance of rewards."""

from __future__ import annotations

import asyncio
import pickle
import signal
import threading
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, cast

from vime_core.config.schema import RewardPoolConfig
from vime_core.plugins.interfaces import Reward
from vime_core.rewards.pool import RewardPool, RewardSpec
from vime_core.testing.contract import require, require_equal
from vime_core.testing.prompts import make_prompt
from vime_core.testing.samples import make_sample
from vime_core.testing.suite import ComponentSuite

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from vime_core.plugins.entries import RewardEntry
    from vime_core.types import Sample, Verdict, VerdictStatus

RESPONSES = (
    "",
    " \n\t ",
    "1",
    "Answer: 1",
    "The answer is \\boxed{1}.",
    "no answer at all",
    "Answer: " + "9" * 5000,
    "x" * 100_000,
    "(" * 5000,
    "\\boxed{" * 2000,
    "1/0",
    "\x00\ud7ff\U0001f600 zéro",
    "{'unclosed': [",
    "__import__('os')._exit(3)",
)
"""What policies write, and what breaks parsers."""

TIME_LIMIT_S = 10.0

WATCHED_SIGNALS = (signal.SIGALRM, signal.SIGTERM, signal.SIGINT)


class RewardSuite(ComponentSuite):
    """Tests of a reward; `label` and `examples` may be set for more than robustness."""

    group = "reward"
    interface = Reward

    label: ClassVar[str] = "1"
    """A reference answer of the form that the reward expects."""
    examples: ClassVar[Sequence[tuple[str, str, VerdictStatus]]] = ()
    """(response, reference answer, expected status)"""

    def test_every_response_gets_a_verdict_in_time(self) -> None:
        """In a scoring process, as in a run; an exception, a crash or a late answer is a fault of the reward."""
        for response, verdict in zip(RESPONSES, self.score_in_pool(RESPONSES), strict=True):
            require(
                verdict.status in ("correct", "wrong", "unparseable"),
                f"the response {response!r:.40} got the status {verdict.status}: {verdict.detail}",
            )

    def test_the_same_response_gets_the_same_verdict(self) -> None:
        """Whatever was scored before, and in whichever process."""
        first = self.score_in_pool(RESPONSES)
        second = self.score_in_pool(RESPONSES[::-1])[::-1]
        for response, one, other in zip(RESPONSES, first, second, strict=True):
            require_equal(other, one, f"the second verdict on {response!r:.40}")

    def test_sample_and_prompt_are_left_as_they_are(self) -> None:
        """Several rewards score the same sample."""
        reward, prompt = self.make(), make_prompt(label=self.label)
        for sample in _samples(RESPONSES[:6]):
            before = pickle.dumps((sample, prompt))
            reward.score(sample, prompt)
            require(pickle.dumps((sample, prompt)) == before, "the reward changes the sample or the prompt")

    def test_the_weight_is_left_to_the_core(self) -> None:
        """`weight` is applied where rewards are combined."""
        samples, prompt = _samples(RESPONSES[:6]), make_prompt(label=self.label)
        plain, heavy = self.make(), self.build(self.config(weight=7.0))
        for sample in samples:
            require_equal(
                heavy.score(sample, prompt).score, plain.score(sample, prompt).score, "the score with another weight"
            )

    def test_scoring_leaves_no_threads_and_no_signal_handlers(self) -> None:
        """A scoring process runs one thread; the time limit is the pool's."""
        reward, prompt = self.make(), make_prompt(label=self.label)
        threads = threading.active_count()
        with _signals_kept() as changed:
            for sample in _samples(RESPONSES[:6]):
                reward.score(sample, prompt)
        require(not changed, f"scoring changes {', '.join(changed)}")
        require(threading.active_count() <= threads, "scoring leaves threads behind")

    def test_the_examples_get_their_status(self) -> None:
        """Only where the plugin gives `examples`."""
        reward = self.make()
        for response, label, status in self.examples:
            [sample] = _samples([response])
            verdict = reward.score(sample, make_prompt(label=label))
            require_equal(verdict.status, status, f"the status of {response!r:.60} for {label!r:.60}")

    def score_in_pool(self, responses: Sequence[str]) -> list[Verdict]:
        """The verdicts of a scoring process on responses to one prompt."""
        entry = cast("RewardEntry", self.component().entry)
        spec = RewardSpec(self.entry, entry.factory, self.config(), entry.text_only)
        config = RewardPoolConfig(workers=1, time_limit_s=TIME_LIMIT_S)
        with RewardPool([spec], config=config) as pool:
            return asyncio.run(pool.score(_samples(responses), make_prompt(label=self.label)))


@contextmanager
def _signals_kept() -> Iterator[list[str]]:
    """Collects what the block changed, and undoes it: the test runner may use an alarm of its own."""
    changed: list[str] = []
    handlers = {number: signal.getsignal(number) for number in WATCHED_SIGNALS}
    alarm = signal.getitimer(signal.ITIMER_REAL)
    yield changed
    for number, handler in handlers.items():
        if signal.getsignal(number) is not handler:
            changed.append(f"the handler of {number.name}")
            signal.signal(number, handler)
    if signal.getitimer(signal.ITIMER_REAL)[0] > alarm[0]:
        changed.append("the alarm")
        signal.setitimer(signal.ITIMER_REAL, *alarm)


def _samples(responses: Sequence[str]) -> list[Sample]:
    return [
        replace(make_sample(3, len(response) % 7 + 1, group="prompt", index=index), response_text=response)
        for index, response in enumerate(responses)
    ]
