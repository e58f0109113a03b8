"""Rewards: `Good`, and others that are wrong in one way. The docstring says how, and which test finds it."""

import random
import signal
import threading
import time

from vime_core.types import Verdict


class Good:
    """Correct when the response ends with the label."""

    def __init__(self, config):
        self.config = config

    def score(self, sample, prompt):
        correct = sample.response_text.strip().endswith(prompt.label)
        return Verdict(float(correct), "correct" if correct else "wrong")


class RaisesOnEmpty(Good):
    """test_every_response_gets_a_verdict_in_time: an empty response raises IndexError."""

    def score(self, sample, prompt):
        return Verdict(float(sample.response_text.split()[-1] == prompt.label), "wrong")


class Crashes(Good):
    """test_every_response_gets_a_verdict_in_time: evaluates what the policy wrote, which ends the process."""

    def score(self, sample, prompt):
        try:
            eval(sample.response_text)
        except Exception:
            return Verdict(0.0, "unparseable")
        return super().score(sample, prompt)


class ReturnsFloat(Good):
    """test_every_response_gets_a_verdict_in_time: returns a number instead of a verdict."""

    def score(self, sample, prompt):
        return 1.0


class ScoresNan(Good):
    """test_every_response_gets_a_verdict_in_time: a score that is not a number."""

    def score(self, sample, prompt):
        return Verdict(float("nan"), "wrong")


class ScoresText(Good):
    """test_every_response_gets_a_verdict_in_time: a score that is the text of a number."""

    def score(self, sample, prompt):
        return Verdict("1", "correct")


class Random(Good):
    """test_the_same_response_gets_the_same_verdict: draws lots."""

    def score(self, sample, prompt):
        return Verdict(random.random(), "correct")


class Remembers(Good):
    """test_the_same_response_gets_the_same_verdict: the score depends on what was scored before."""

    seen = 0

    def score(self, sample, prompt):
        self.seen += 1
        return Verdict(float(self.seen), "correct")


class StripsTheSample(Good):
    """test_sample_and_prompt_are_left_as_they_are: changes the response that other rewards see."""

    def score(self, sample, prompt):
        sample.response_text = sample.response_text.strip() + "."
        return super().score(sample, prompt)


class WeighsTwice(Good):
    """test_the_weight_is_left_to_the_core: multiplies by the weight, which the core does too."""

    def score(self, sample, prompt):
        verdict = super().score(sample, prompt)
        return Verdict((verdict.score + 1.0) * self.config.weight, verdict.status)


class SetsAnAlarm(Good):
    """test_scoring_leaves_no_threads_and_no_signal_handlers: a time limit by signal, which the pool does without."""

    def score(self, sample, prompt):
        signal.signal(signal.SIGALRM, lambda number, frame: None)
        signal.alarm(3600)
        return super().score(sample, prompt)


class LeavesThreads(Good):
    """test_scoring_leaves_no_threads_and_no_signal_handlers: a thread for each sample, never ended."""

    def score(self, sample, prompt):
        threading.Thread(target=time.sleep, args=(1,), daemon=True).start()
        return super().score(sample, prompt)


class NoScore:
    """test_the_component_has_the_methods_of_its_kind: another name for the method."""

    def __init__(self, config):
        pass

    def reward(self, sample, prompt):
        return 1.0


class AsyncScore(Good):
    """test_the_component_has_the_methods_of_its_kind: a coroutine, which no scoring process awaits."""

    async def score(self, sample, prompt):
        return Verdict(1.0, "correct")


class OtherArguments(Good):
    """test_the_component_has_the_methods_of_its_kind: one argument instead of two."""

    def score(self, sample):
        return Verdict(1.0, "correct")
