"""Prompts from texts and files that only want an answer: no labels, no data set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vime_core.data.records import chat_of
from vime_core.data.rows import READERS, read_rows
from vime_core.errors import DataError
from vime_core.types import Prompt

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from vime_core.data.tokenizer import Tokenizer

SHOWN_CHARACTERS = 40


def read_chats(path: Path, prompt_key: str) -> Iterator[list[dict[str, str]]]:
    """The chats of a file: each line of text that is not empty, or the key `prompt_key` of each row.

    Raises:
        DataError: when the file or a row of it cannot be read.
    """
    if path.suffix in READERS:
        for row in read_rows(path):
            yield [dict(message) for message in chat_of(row, prompt_key)]
        return
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    yield from (user_message(line) for line in text.splitlines() if line.strip())


def user_message(text: str) -> list[dict[str, str]]:
    """A chat of one message of the user."""
    return [{"role": "user", "content": text}]


def make_prompts(
    chats: Iterable[Sequence[Mapping[str, str]]],
    tokenizer: Tokenizer,
    *,
    max_tokens: int,
    system: str | None = None,
    raw: bool = False,
) -> list[Prompt]:
    """Tokenise chats, numbered from 0.

    Args:
        chats: messages with `role` and `content`.
        tokenizer: of the model.
        max_tokens: a prompt may have.
        system: a message that goes before each chat.
        raw: whether the text of a chat is taken as it is, without the chat template; then it has one message.

    Raises:
        DataError: when there are none, one is too long, or the chat template refuses one.
        ModelError: when the tokenizer has no chat template.
    """
    first = [] if system is None else [{"role": "system", "content": system}]
    messages = [[*first, *map(dict, chat)] for chat in chats]
    if not messages:
        raise DataError("there is no prompt: give some with --prompt, --file or on standard input")
    texts = [_raw_text(chat) if raw else tokenizer.render(chat) for chat in messages]
    prompts = []
    for number, (chat, ids) in enumerate(zip(messages, tokenizer.encode_batch(texts), strict=True)):
        if not 0 < len(ids) <= max_tokens:
            raise DataError(f"prompt {number} ({_shown(chat)}) has {len(ids)} tokens, {_remedy(len(ids), max_tokens)}")
        prompts.append(Prompt(id=str(number), messages=tuple(chat), token_ids=tuple(ids), label=""))
    return prompts


def _raw_text(chat: Sequence[Mapping[str, str]]) -> str:
    if len(chat) != 1:
        raise DataError(f"without the chat template a prompt is one text, not {len(chat)} messages: leave out --raw")
    return chat[0]["content"]


def _remedy(count: int, limit: int) -> str:
    return f"more than rollout.max_prompt_tokens={limit}: raise that" if count else "and an engine needs at least one"


def _shown(chat: Sequence[Mapping[str, Any]]) -> str:
    text = str(chat[-1]["content"])
    return repr(text if len(text) <= SHOWN_CHARACTERS else f"{text[: SHOWN_CHARACTERS - 3]}...")
