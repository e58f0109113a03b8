"""Conformance of prompt sources."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from omegaconf import MISSING

from vime_core.data.tokenizer import Tokenizer
from vime_core.errors import RunFolderError
from vime_core.plugins.interfaces import PromptSource
from vime_core.testing.contract import Nonconformance, require, require_equal
from vime_core.testing.suite import ComponentSuite, need, scratch
from vime_core.testing.tokenizers import write_byte_tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from vime_core.types import Prompt

ROWS = 11
"""Rows of the file that the tests write; one of them is too long."""

MAX_PROMPT_TOKENS = 400

MOST_PROMPTS = 2000
"""An epoch of this size or less is read to its end."""


class PromptSourceSuite(ComponentSuite):
    """Tests of a prompt source.

    Where neither the defaults nor `settings` say what `train` is, it is a jsonl file with `prompt` and `label`.
    """

    group = "data"
    interface = PromptSource

    def test_prompts_are_complete(self) -> None:
        """Ids, tokens within the limit, plain metadata."""
        with self.made() as source:
            require(len(source) > 0, "there are no prompts")
            for prompt in source.take(min(len(source), 50)):
                where = f"prompt {prompt.id!r}"
                require(isinstance(prompt.id, str) and bool(prompt.id), f"{where} has no id")
                require(bool(prompt.token_ids), f"{where} has no tokens")
                require(
                    all(type(token) is int for token in prompt.token_ids), f"the tokens of {where} are no plain ints"
                )
                require(len(prompt.token_ids) <= MAX_PROMPT_TOKENS, f"{where} is longer than max_prompt_tokens")
                require(isinstance(prompt.label, str), f"the label of {where} is no text")
                _require_json(dict(prompt.metadata), f"the metadata of {where}")

    def test_an_epoch_holds_every_prompt_once(self) -> None:
        """And the next one holds the same."""
        with self.made() as source:
            count = min(len(source), MOST_PROMPTS)
            first, second = _ids(source.take(count)), _ids(source.take(count))
            require_equal(len(first), count, "the number of prompts taken")
            require(len(set(first)) == count, "a prompt is there twice in one epoch, or two have one id")
            if count == len(source):
                require_equal(set(second), set(first), "the prompts of the second epoch")

    def test_it_goes_on_from_its_state(self) -> None:
        """In this process and in another, at any place, also across the end of an epoch."""
        with self.made() as source, self.made() as other:
            for taken in (0, 1, max(len(source) - 2, 0), 3):
                source.take(taken)
                state = source.state()
                _require_json(state, "the state")
                require({"epoch", "position"} <= state.keys(), "the state must hold epoch and position")
                expected = _ids(source.take(5))
                for restored in (source, other):
                    restored.restore(json.loads(json.dumps(state)))
                    require_equal(restored.state(), state, "the state after it was restored")
                    require_equal(_ids(restored.take(5)), expected, f"the prompts after {taken} more and a restore")

    def test_how_many_are_taken_at_a_time_changes_nothing(self) -> None:
        """A step may ask for more when filters drop groups."""
        with self.made() as source, self.made() as other:
            at_once = _ids(source.take(7))
            one_by_one = [prompt for count in (1, 0, 2, 4) for prompt in other.take(count)]
            require_equal(_ids(one_by_one), at_once, "the prompts taken a few at a time")

    def test_the_state_of_other_data_is_refused(self) -> None:
        """A run must not go on with data that it was not started with."""
        with self.made() as source:
            state = source.state()
            damaged = {"nothing": {}, "no position": {"epoch": 0}, "a far position": {**state, "position": 10**12}}
            for what, given in damaged.items():
                try:
                    source.restore(given)
                except RunFolderError:
                    continue
                except Exception as error:
                    raise Nonconformance(f"a state with {what} raises {error!r}, not RunFolderError") from error
                raise Nonconformance(f"a state with {what} is accepted; raise RunFolderError")

    def test_what_it_read_is_counted(self) -> None:
        """Whole numbers, told once at the start of a run."""
        with self.made() as source:
            for name, count in source.report().items():
                require(
                    isinstance(name, str) and type(count) is int, f"report holds {name!r}: {count!r}, no whole number"
                )

    @contextmanager
    def made(self) -> Iterator[Any]:
        """A source over the tests' data; the run's seed is 3."""
        need("transformers")
        with scratch() as folder:
            tokenizer = Tokenizer(write_byte_tokenizer(folder / "tokenizer"))
            yield self.build(self.source_config(folder), tokenizer, 3, MAX_PROMPT_TOKENS)

    def source_config(self, folder: Path) -> Any:
        """The settings, with a file of prompts where they need one."""
        config = self.config()
        if config.train == MISSING:
            config.train = str(_write_prompts(folder / "prompts.jsonl"))
        return config


def _write_prompts(file: Path) -> Path:
    texts = [f"What is {row} plus {row}?" for row in range(ROWS - 1)] + ["too long " * MAX_PROMPT_TOKENS]
    lines = [{"id": f"row{row}", "prompt": text, "label": str(2 * row)} for row, text in enumerate(texts)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def _ids(prompts: list[Prompt]) -> list[str]:
    return [prompt.id for prompt in prompts]


def _require_json(value: Any, what: str) -> None:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise Nonconformance(f"{what} cannot be written as JSON: {error}") from error
