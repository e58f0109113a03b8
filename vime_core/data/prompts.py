"""Data files as a table of tokenised prompts, in the order of the files."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from vime_core.data.records import Record, record_parser
from vime_core.data.rows import find_files, read_rows
from vime_core.errors import DataError
from vime_core.types import Prompt

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from vime_core.data.config import FilesConfig
    from vime_core.data.records import Messages
    from vime_core.data.tokenizer import Tokenizer

    Tokens = NDArray[np.int32]

TOKENIZER_BATCH = 1024


@contextmanager
def naming(key: str) -> Iterator[None]:
    """Let a DataError tell which key names the data."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{key}: {error}") from error


class PromptTable:
    """The prompts of one or more files that are short enough; compact, so that millions of rows fit.

    Args:
        pattern: a file or a glob pattern.
        config: the keys of plain rows.
        tokenizer: applies the chat template.
        max_prompt_tokens: longer prompts are left out and counted.
        max_rows: read only the first so many rows.

    Raises:
        DataError: for a file or a row that is wrong, for an empty data set, and when every prompt is too long.
        ModelError: when the tokenizer has no chat template.
    """

    def __init__(
        self,
        pattern: str,
        config: FilesConfig,
        tokenizer: Tokenizer,
        *,
        max_prompt_tokens: int,
        max_rows: int | None = None,
    ) -> None:
        records = list(_share_chats(islice(_read_records(pattern, config), max_rows)))
        if not records:
            raise DataError(f"{pattern}: no rows; a data set needs at least one prompt")
        self._tokens = _tokenise(records, tokenizer)
        lengths = [len(self._tokens[record.messages]) for record in records]
        self._records = [record for record, length in zip(records, lengths, strict=True) if length <= max_prompt_tokens]
        if not self._records:
            raise DataError(
                f"{pattern}: all {len(records)} prompts are longer than rollout.max_prompt_tokens={max_prompt_tokens} "
                f"(the shortest has {min(lengths)} tokens); raise it"
            )
        self._ids = _unique_ids(self._records)
        self._report = {
            "rows": len(records),
            "too_long": len(records) - len(self._records),
            "kept": len(self._records),
            "distinct": len({record.messages for record in self._records}),
        }

    def __len__(self) -> int:
        """Prompts that are short enough."""
        return len(self._records)

    def __getitem__(self, row: int) -> Prompt:
        """The prompt at `row`, counted from 0 over the prompts that are kept."""
        record = self._records[row]
        return Prompt(
            id=self._ids[row],
            messages=tuple(dict(message) for message in record.messages),
            token_ids=tuple(self._tokens[record.messages].tolist()),
            label=record.label,
            data_source=record.data_source,
            metadata=json.loads(record.metadata),
        )

    @property
    def fingerprint(self) -> str:
        """Hash of everything the prompts hold, tokens included; not of where the files lie."""
        digest = xxhash.xxh3_64()
        for identity, record in zip(self._ids, self._records, strict=True):
            digest.update(json.dumps([identity, record.label, record.data_source, record.metadata]).encode())
            digest.update(self._tokens[record.messages].tobytes())
        return digest.hexdigest()

    def report(self) -> dict[str, int]:
        """`rows` read, `too_long` left out, `kept`, and how many of those have `distinct` messages."""
        return dict(self._report)


def _read_records(pattern: str, config: FilesConfig) -> Iterator[Record]:
    for path in find_files(pattern):
        yield from _read_file(path, config)


def _read_file(path: Path, config: FilesConfig) -> Iterator[Record]:
    parse = None
    for row in read_rows(path):
        if parse is None:
            parse = record_parser(row, config)
        yield parse(row)


def _share_chats(records: Iterable[Record]) -> Iterator[Record]:
    """Equal chats become one object: data sets are found that repeat every prompt a hundred times."""
    chats: dict[Messages, Messages] = {}
    for record in records:
        yield replace(record, messages=chats.setdefault(record.messages, record.messages))


def _tokenise(records: Sequence[Record], tokenizer: Tokenizer) -> dict[Messages, Tokens]:
    """Token ids of each distinct chat."""
    distinct: dict[Messages, Record] = {}
    for record in records:
        distinct.setdefault(record.messages, record)
    tokens: dict[Messages, Tokens] = {}
    remaining = iter(distinct.values())
    while batch := list(islice(remaining, TOKENIZER_BATCH)):
        texts = [_render(record, tokenizer) for record in batch]
        for record, ids in zip(batch, tokenizer.encode_batch(texts), strict=True):
            tokens[record.messages] = np.asarray(ids, dtype=np.int32)
    return tokens


def _render(record: Record, tokenizer: Tokenizer) -> str:
    try:
        return tokenizer.render([dict(message) for message in record.messages])
    except DataError as error:
        raise DataError(f"{record.place}: {error}") from error


def _unique_ids(records: Sequence[Record]) -> list[str]:
    """The ids of the rows; one that is taken gets `#2`, `#3`, ... in the order of the files."""
    taken: set[str] = set()
    repeats: dict[str, int] = {}
    ids = []
    for record in records:
        identity = record.id
        while identity in taken:
            repeats[record.id] = repeats.get(record.id, 1) + 1
            identity = f"{record.id}#{repeats[record.id]}"
        taken.add(identity)
        ids.append(identity)
    return ids
