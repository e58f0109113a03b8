"""Parts of a run without engines or processes, for tests of rollout functions, filters and sources."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from vime_core.types import Completion, Verdict, VersionSpan

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from vime_core.types import Prompt, Sample, SamplingParams


@dataclass(frozen=True, slots=True)
class Request:
    """One call of `ScriptedGenerator.generate`."""

    token_ids: tuple[int, ...]
    params: SamplingParams
    engine: str | None


async def _at_once(request: Request) -> None:
    """Let requests that are made at the same time begin."""
    await asyncio.sleep(0)


@dataclass
class ScriptedGenerator:
    """Implements `Generator`: answers what a function says, cut at `max_tokens`, and remembers the requests."""

    answer: Callable[[Request], Sequence[int]]
    """Response tokens to a request; may raise."""
    before: Callable[[Request], Awaitable[None]] = _at_once
    """Awaited before the answer: decides when a response is ready."""
    policy_version: int = 0
    """Of all responses."""
    requests: list[Request] = field(default_factory=list)
    """In the order of the calls."""
    running: int = 0
    """Requests without an answer yet."""
    most_running: int = 0
    """Largest value that `running` had."""

    async def generate(
        self, token_ids: Sequence[int], params: SamplingParams, *, engine: str | None = None
    ) -> Completion:
        """The scripted answer; each token has the log-prob -1/2."""
        request = Request(tuple(token_ids), params, engine)
        self.requests.append(request)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await self.before(request)
            tokens = list(self.answer(request))
        finally:
            self.running -= 1
        cut = tokens[: params.max_tokens]
        return Completion(
            token_ids=np.array(cut, dtype=np.int64),
            logprobs=np.full(len(cut), -0.5, dtype=np.float32),
            finish_reason="length" if len(cut) < len(tokens) else "stop",
            policy_versions=(VersionSpan(self.policy_version, 0, len(cut)),),
        )


@dataclass
class ScriptedScorer:
    """Scores in this process, by a plain function."""

    verdict: Callable[[Sample, Prompt], Verdict]

    async def score(self, samples: Sequence[Sample], prompt: Prompt) -> list[Verdict]:
        """One verdict for each sample, in order."""
        return [self.verdict(sample, prompt) for sample in samples]


@dataclass
class ScriptedTools(ScriptedGenerator):
    """Implements `RolloutTools`: text has one token a byte, so that all of its ids are below 256."""

    verdict: Callable[[Sample, Prompt], Verdict] = lambda sample, prompt: Verdict(0.0, "wrong")
    """What `check` says."""
    checked: list[Sample] = field(default_factory=list)
    """What `check` was asked about."""

    def encode(self, text: str) -> list[int]:
        """The bytes of the text."""
        return list(text.encode())

    def decode(self, token_ids: Iterable[int], *, skip_special: bool = True) -> str:
        """The text; ids that are no bytes are left out."""
        return bytes(token for token in map(int, token_ids) if token < 256).decode(errors="replace")

    def next_turn(self, response_ids: Sequence[int], messages: Sequence[Mapping[str, str]]) -> list[int]:
        """A line for each message, and one that opens the next turn."""
        return self.encode("".join(f"\n{message['role']}: {message['content']}" for message in messages) + "\n")

    async def check(self, sample: Sample, prompt: Prompt) -> Verdict:
        """What the script says."""
        self.checked.append(sample)
        await asyncio.sleep(0)
        return self.verdict(sample, prompt)


@dataclass
class ListSource:
    """Implements `PromptSource` over given prompts, in their order."""

    prompts: Sequence[Prompt]
    taken: int = 0
    """Prompts handed out so far."""

    def __len__(self) -> int:
        """Prompts in one epoch."""
        return len(self.prompts)

    def take(self, count: int) -> list[Prompt]:
        """The next `count` prompts; crosses into the next epoch when one ends."""
        rows = range(self.taken, self.taken + count)
        self.taken += count
        return [self.prompts[row % len(self.prompts)] for row in rows]

    def state(self) -> dict[str, int]:
        """Epoch and position."""
        epoch, position = divmod(self.taken, len(self.prompts))
        return {"epoch": epoch, "position": position}

    def restore(self, state: Mapping[str, int]) -> None:
        """Continue from `state`."""
        self.taken = state["epoch"] * len(self.prompts) + state["position"]

    def report(self) -> Mapping[str, int]:
        """`rows`."""
        return {"rows": len(self.prompts)}


class NumberTokenizer:
    """Decodes each token id as its decimal number: `[3, 14]` is `3 14`."""

    def decode(self, token_ids: Iterable[int], *, skip_special: bool = True) -> str:
        """The numbers, separated by spaces."""
        return " ".join(str(int(token)) for token in token_ids)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The other way round."""
        return [[int(number) for number in text.split()] for text in texts]

    def render_turn(self, messages: Sequence[Mapping[str, str]]) -> str:
        """0 ends a turn, 1 begins a message and 2 the next response; contents are numbers too."""
        return " ".join(["0", *(f"1 {message['content']}" for message in messages), "2"])
