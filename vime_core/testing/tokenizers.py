"""A small real tokenizer for tests: every byte is a token, so that any text makes the round trip."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""Ids 256, 257 and 258: padding, start and end of a message."""

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""The chat template of Qwen models, without system prompt and tools."""


def write_byte_tokenizer(folder: Path, *, chat_template: str | None = CHATML) -> Path:
    """Write the files of a byte-level BPE tokenizer without merges; `AutoTokenizer` reads them.

    Returns:
        `folder`.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {character: token for token, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    bytes_only = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    bytes_only.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bytes_only.decoder = decoders.ByteLevel()
    bytes_only.add_special_tokens(list(SPECIAL_TOKENS))
    pad, _, end = SPECIAL_TOKENS
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bytes_only, eos_token=end, pad_token=pad)
    tokenizer.chat_template = chat_template
    tokenizer.save_pretrained(folder)
    return folder
