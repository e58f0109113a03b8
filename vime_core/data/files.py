"""The prompt source `files`: parquet and jsonl, shuffled anew each epoch, resumable to the prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from vime_core.data.prompts import PromptTable, naming
from vime_core.errors import RunFolderError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vime_core.data.config import FilesConfig
    from vime_core.data.tokenizer import Tokenizer
    from vime_core.types import IntArray, Prompt


class FileSource:
    """Implements `PromptSource`: every prompt once an epoch, in an order that only seed and epoch decide.

    Args:
        config: files, keys and shuffling.
        tokenizer: applies the chat template.
        seed: the run's seed; `config.seed` comes first.
        max_prompt_tokens: longer prompts are left out and counted.

    Raises:
        DataError: for a file or a row that is wrong, for an empty data set, and when every prompt is too long.
        ModelError: when the tokenizer has no chat template.
    """

    def __init__(self, config: FilesConfig, tokenizer: Tokenizer, seed: int, max_prompt_tokens: int) -> None:
        with naming("data.train"):
            self._table = PromptTable(config.train, config, tokenizer, max_prompt_tokens=max_prompt_tokens)
        self._shuffle = config.shuffle
        self._seed = seed if config.seed is None else config.seed
        self._identity = {
            "prompts": len(self._table),
            "fingerprint": self._table.fingerprint,
            "shuffle": self._shuffle,
            "seed": self._seed,
        }
        self._path = config.train
        self._seek(0, 0)

    def __len__(self) -> int:
        """Prompts in one epoch, after filtering."""
        return len(self._table)

    def take(self, count: int) -> list[Prompt]:
        """The next `count` prompts; crosses into the next epoch when one ends."""
        return [self._table[self._advance()] for _ in range(count)]

    def state(self) -> dict[str, Any]:
        """Position of the next prompt, and what identifies data and order; plain JSON."""
        return {"epoch": self._epoch, "position": self._position, **self._identity}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`.

        Raises:
            RunFolderError: when the data or their order are not those that `state` was taken from.
        """
        missing = [key for key in self.state() if key not in state]
        if missing:
            raise RunFolderError(f"the checkpoint's data position lacks {', '.join(missing)}: it cannot be continued")
        changed = [f"{key} {state[key]!r} -> {now!r}" for key, now in self._identity.items() if state[key] != now]
        if changed:
            raise RunFolderError(
                f"{self._path}: not the data, tokenizer or order of the checkpoint ({', '.join(changed)}); "
                "restore them, or start a new run with resume.mode=never"
            )
        epoch, position = int(state["epoch"]), int(state["position"])
        if epoch < 0 or not 0 <= position < len(self):
            raise RunFolderError(f"the checkpoint's data position is epoch {epoch}, prompt {position} of {len(self)}")
        self._seek(epoch, position)

    def report(self) -> Mapping[str, int]:
        """Counts: `rows` read, prompts `too_long`, `kept`, and `distinct` ones among those."""
        return self._table.report()

    def _seek(self, epoch: int, position: int) -> None:
        self._epoch, self._position = epoch, position
        self._order = self._epoch_order(epoch)

    def _advance(self) -> int:
        row = int(self._order[self._position])
        if self._position + 1 < len(self):
            self._position += 1
        else:
            self._seek(self._epoch + 1, 0)
        return row

    def _epoch_order(self, epoch: int) -> IntArray:
        """[len(self)] rows in the order of one epoch.

        Sorts raw PCG64 output: numpy keeps that stream over its versions, and not that of `permutation` (NEP 19).
        """
        if not self._shuffle:
            return np.arange(len(self))
        seed = np.random.SeedSequence([self._seed % 2**64, epoch])  # numpy takes no negative seeds
        return np.argsort(np.random.PCG64(seed).random_raw(len(self)), kind="stable")
