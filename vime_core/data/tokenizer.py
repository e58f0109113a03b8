"""Text to tokens and back, with the model's own tokenizer and chat template."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash

from vime_core.errors import DataError, ModelError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

VOCABULARY_FILES = ("tokenizer.json", "vocab.json", "tokenizer.model")
"""One of these holds the vocabulary. Without any, transformers makes an empty tokenizer and says nothing."""

MARK = "[[response]]"
"""Stands for a response where only what follows it is wanted."""


class Tokenizer:
    """The tokenizer of a model folder. Nothing is downloaded and no code of the folder is run.

    Args:
        path: folder in Hugging Face format.
        chat_template: file with a Jinja template that replaces the tokenizer's own.

    Raises:
        ModelError: when the folder has no usable tokenizer, or the template's file cannot be read.
    """

    def __init__(self, path: str | Path, chat_template: str | Path | None = None) -> None:
        self._path = Path(path)
        self._tokenizer = _load(self._path)
        if chat_template is not None:
            self._tokenizer.chat_template = _read_template(Path(chat_template))

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The text of a chat after the template, up to and with the generation prompt.

        Raises:
            ModelError: when there is no chat template.
            DataError: when the template refuses the messages.
        """
        import jinja2

        if not self._tokenizer.chat_template:
            raise ModelError(
                f"{self._path}: the tokenizer has no chat template; set model.chat_template to a file with one"
            )
        chat = [dict(message) for message in messages]
        try:
            text = self._tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        except (jinja2.TemplateError, TypeError, ValueError) as error:
            raise DataError(f"the chat template of {self._path} refuses the messages: {error}") from error
        return str(text)

    def render_turn(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The text from the end of a response to the begin of the next: end of turn, `messages`, generation prompt.

        Raises:
            ModelError: when there is no chat template.
            DataError: when the template refuses the messages, or does not show a response as it is.
        """
        rendered = self.render([{"role": "user", "content": "?"}, {"role": "assistant", "content": MARK}, *messages])
        if rendered.count(MARK) != 1:
            raise DataError(f"the chat template of {self._path} does not show a response once: it is for one turn only")
        return rendered.partition(MARK)[2]

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """[P] token ids of a chat, generation prompt included; errors as `render`."""
        return self.encode_batch([self.render(messages)])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text; no special token is added."""
        if not texts:
            return []
        ids: list[list[int]] = self._tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]
        return ids

    def decode(self, token_ids: Iterable[int], *, skip_special: bool = True) -> str:
        """Text of token ids, spaces exactly as they were generated."""
        ids = [int(token) for token in token_ids]
        text = self._tokenizer.decode(ids, skip_special_tokens=skip_special, clean_up_tokenization_spaces=False)
        return str(text)

    @cached_property
    def fingerprint(self) -> str:
        """Changes whenever vocabulary, merges, special tokens, normalisation or chat template change."""
        content = f"{self._tokenizer.backend_tokenizer.to_str()}\0{self._tokenizer.chat_template}"
        return xxhash.xxh3_128_hexdigest(content.encode())


def _load(path: Path) -> Any:
    if not path.is_dir():
        raise ModelError(f"model.path={path}: no such folder; give a folder in Hugging Face format")
    if not any((path / name).is_file() for name in VOCABULARY_FILES):
        raise ModelError(f"{path}: no tokenizer; one of {', '.join(VOCABULARY_FILES)} must be there")
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # transformers and tokenizers raise whatever their parsers raise
        cause = str(error).strip().split("\n")[0]
        raise ModelError(f"{path}: the tokenizer cannot be loaded ({type(error).__name__}: {cause})") from error
    if not tokenizer.is_fast:
        raise ModelError(f"{path}: {type(tokenizer).__name__} has no fast version; convert it to tokenizer.json")
    return tokenizer


def _read_template(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"model.chat_template={path}: cannot be read: {error}") from error
