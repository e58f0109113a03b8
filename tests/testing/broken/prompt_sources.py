"""Prompt sources: `Good`, and others that are wrong in one way. The docstring says how, and which test finds it."""

import random
from dataclasses import replace

from vime_core.data.files import FileSource


class Good(FileSource):
    """Prompts from a file."""


class NoTokens(Good):
    """test_prompts_are_complete: leaves the tokens to somebody else."""

    def take(self, count):
        return [replace(prompt, token_ids=()) for prompt in super().take(count)]


class TooLong(Good):
    """test_prompts_are_complete: ignores max_prompt_tokens."""

    def __init__(self, config, tokenizer, seed, max_prompt_tokens):
        super().__init__(config, tokenizer, seed, 10**6)


class NumberLabels(Good):
    """test_prompts_are_complete: labels that are no text."""

    def take(self, count):
        return [replace(prompt, label=int(prompt.label)) for prompt in super().take(count)]


class WithReplacement(Good):
    """test_an_epoch_holds_every_prompt_once: draws with replacement."""

    def take(self, count):
        prompts = super().take(count)
        return [prompts[index // 2] for index in range(count)]


class ForgetsItsPlace(Good):
    """test_it_goes_on_from_its_state: begins again after a restore."""

    def restore(self, state):
        super().restore({**state, "epoch": 0, "position": 0})


class ShufflesByTheClock(Good):
    """test_it_goes_on_from_its_state: an order that no seed decides."""

    def take(self, count):
        prompts = super().take(count)
        random.shuffle(prompts)
        return prompts


class StateOfTuples(Good):
    """test_it_goes_on_from_its_state: a state that JSON cannot hold."""

    def state(self):
        return {**super().state(), "rng": {1, 2, 3}}


class DropsTheRest(Good):
    """test_how_many_are_taken_at_a_time_changes_nothing: skips to the next even position."""

    def take(self, count):
        prompts = super().take(count)
        if count % 2:
            super().take(1)
        return prompts


class AcceptsAnything(Good):
    """test_the_state_of_other_data_is_refused: begins anew when the state does not fit."""

    def restore(self, state):
        if self.state().keys() == state.keys() and state["position"] < len(self):
            super().restore(state)


class CountsInFloats(Good):
    """test_what_it_read_is_counted: shares instead of counts."""

    def report(self):
        return {"kept": 0.5}
