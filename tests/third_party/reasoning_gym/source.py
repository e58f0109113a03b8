"""The prompt source `reasoning_gym`."""

from __future__ import annotations

import json
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import numpy as np
import reasoning_gym
from reasoning_gym.factory import DATASETS
from reasoning_gym.utils import SYSTEM_PROMPTS

from vime_core import ConfigError, DataError, Prompt, RunFolderError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vime_reasoning_gym.config import ReasoningGymData

    from vime_core.data.tokenizer import Tokenizer


class ReasoningGymSource:
    """Implements `vime_core.PromptSource`: every problem once an epoch, in an order that only seed and epoch decide."""

    def __init__(self, config: ReasoningGymData, tokenizer: Tokenizer, seed: int, max_prompt_tokens: int) -> None:
        self._shuffle = config.shuffle
        self._identity = {
            "task": _known("data.train", config.train, DATASETS),
            "size": config.size,
            "seed": seed if config.seed is None else config.seed,
            "shuffle": config.shuffle,
        }
        problems = reasoning_gym.create_dataset(config.train, size=config.size, seed=self._identity["seed"])
        prompts = [_prompt(problem, config, tokenizer) for problem in problems]
        self._prompts = [prompt for prompt in prompts if len(prompt.token_ids) <= max_prompt_tokens]
        if not self._prompts:
            raise DataError(
                f"data.train={config.train}: all {len(prompts)} prompts are longer than "
                f"rollout.max_prompt_tokens={max_prompt_tokens}; raise it"
            )
        self._report = {"problems": len(prompts), "too_long": len(prompts) - len(self._prompts)}
        self._seek(0, 0)

    def __len__(self) -> int:
        """Prompts in one epoch, after filtering."""
        return len(self._prompts)

    def take(self, count: int) -> list[Prompt]:
        """The next `count` prompts; crosses into the next epoch when one ends."""
        return [self._next() for _ in range(count)]

    def state(self) -> dict[str, Any]:
        """Position, and what identifies the problems."""
        return {"epoch": self._epoch, "position": self._position, **self._identity}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`."""
        changed = [key for key, value in self._identity.items() if state.get(key) != value]
        if changed:
            raise RunFolderError(f"the checkpoint's problems have another {', '.join(changed)}; set it back")
        position = state.get("position", -1)
        if "epoch" not in state or not 0 <= position < len(self):
            raise RunFolderError(f"the checkpoint's data position {position} is none of {len(self)} prompts")
        self._seek(state["epoch"], position)

    def report(self) -> Mapping[str, int]:
        """How many problems were made, and how many of them are too long."""
        return dict(self._report)

    def _seek(self, epoch: int, position: int) -> None:
        self._epoch, self._position = epoch, position
        order = np.random.default_rng([self._identity["seed"], epoch]).permutation(len(self))
        self._order = order if self._shuffle else np.arange(len(self))

    def _next(self) -> Prompt:
        prompt = self._prompts[self._order[self._position]]
        if self._position + 1 < len(self):
            self._position += 1
        else:
            self._seek(self._epoch + 1, 0)
        return prompt


def _prompt(problem: Mapping[str, Any], config: ReasoningGymData, tokenizer: Tokenizer) -> Prompt:
    messages = [{"role": "user", "content": problem["question"]}]
    if config.system_prompt:
        name = _known("data.system_prompt", config.system_prompt, SYSTEM_PROMPTS)
        messages.insert(0, {"role": "system", "content": SYSTEM_PROMPTS[name]})
    # Through JSON: a scoring process and a checkpoint get plain values.
    metadata = json.loads(json.dumps({"problem": problem}, default=str))
    return Prompt(
        id=f"{config.train}/{problem['metadata']['source_index']}",
        messages=tuple(messages),
        token_ids=tuple(tokenizer.encode_chat(messages)),
        label=str(problem["answer"]),
        data_source=config.train,
        metadata=metadata,
    )


def _known(key: str, name: str, names: Mapping[str, Any]) -> str:
    if name not in names:
        close = get_close_matches(name, names, n=1)
        hint = f"; did you mean {close[0]}?" if close else f"; there are {', '.join(sorted(names))}"
        raise ConfigError(f"{key}={name}: reasoning-gym has none of that name{hint}")
    return name
