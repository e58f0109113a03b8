"""What a rollout function works with, in a run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from vime_core.plugins.interfaces import Generator
    from vime_core.types import Completion, Prompt, Sample, SamplingParams, Verdict


class Scorer(Protocol):
    """Judges samples, each within a time limit of its own."""

    async def score(self, samples: Sequence[Sample], prompt: Prompt) -> list[Verdict]:
        """One verdict for each sample, in order."""
        ...


class Text(Protocol):
    """Text to tokens and back; see `vime_core.data.tokenizer.Tokenizer`."""

    def decode(self, token_ids: Iterable[int], *, skip_special: bool = True) -> str:
        """The text, without special tokens unless they are wanted."""
        ...

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text; no special token is added."""
        ...

    def render_turn(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The text from the end of a response to the begin of the next."""
        ...


@dataclass(frozen=True, slots=True)
class Tools:
    """Implements `RolloutTools` with the parts of a run."""

    generator: Generator
    scorer: Scorer
    text: Text

    async def generate(
        self, token_ids: Sequence[int], params: SamplingParams, *, engine: str | None = None
    ) -> Completion:
        """Sample one response."""
        return await self.generator.generate(token_ids, params, engine=engine)

    def encode(self, text: str) -> list[int]:
        """Token ids; no special token is added."""
        [ids] = self.text.encode_batch([text])
        return ids

    def decode(self, token_ids: Iterable[int], *, skip_special: bool = True) -> str:
        """The text, without special tokens unless they are wanted."""
        return self.text.decode(token_ids, skip_special=skip_special)

    def next_turn(self, response_ids: Sequence[int], messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Token ids that follow a response."""
        ids = self.encode(self.text.render_turn(messages))
        ends_itself = len(response_ids) > 0 and ids[:1] == [int(response_ids[-1])]
        return ids[1:] if ends_itself else ids

    async def check(self, sample: Sample, prompt: Prompt) -> Verdict:
        """What the rewards say of a sample as it is so far."""
        copy = replace(sample, response_text=self.decode(sample.response_ids), metadata={})
        [verdict] = await self.scorer.score([copy], prompt)
        return verdict
