"""Prompts of texts and files, for answers alone."""

import json

import pytest

from vime_core.data.texts import make_prompts, read_chats, user_message
from vime_core.data.tokenizer import Tokenizer
from vime_core.errors import DataError
from vime_core.testing.tokenizers import write_byte_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    write_byte_tokenizer(folder)
    return Tokenizer(folder)


def test_a_text_becomes_a_chat_with_the_template(tokenizer):
    [prompt] = make_prompts([user_message("hi")], tokenizer, max_tokens=100)
    assert prompt.messages == ({"role": "user", "content": "hi"},)
    assert list(prompt.token_ids) == tokenizer.encode_chat(prompt.messages)
    assert prompt.id == "0"


def test_a_system_message_goes_before_and_raw_text_stays_as_it_is(tokenizer):
    chats = [user_message("one"), user_message("two")]
    prompts = make_prompts(chats, tokenizer, max_tokens=100, system="be brief")
    assert [[m["role"] for m in prompt.messages] for prompt in prompts] == [["system", "user"]] * 2
    raw = make_prompts(chats, tokenizer, max_tokens=100, raw=True)
    assert [tokenizer.decode(prompt.token_ids) for prompt in raw] == ["one", "two"]
    with pytest.raises(DataError, match="not 2 messages: leave out --raw"):
        make_prompts(chats, tokenizer, max_tokens=100, system="be brief", raw=True)


def test_a_prompt_that_does_not_fit_is_named(tokenizer):
    with pytest.raises(
        DataError, match=r"prompt 1 \('x{37}\.\.\.'\) has 50 tokens, more than rollout.max_prompt_tokens=9"
    ):
        make_prompts([user_message("a"), user_message("x" * 50)], tokenizer, max_tokens=9, raw=True)
    with pytest.raises(DataError, match=r"prompt 0 \(''\) has 0 tokens, and an engine needs at least one"):
        make_prompts([user_message("")], tokenizer, max_tokens=9, raw=True)
    with pytest.raises(DataError, match="there is no prompt: give some with --prompt"):
        make_prompts([], tokenizer, max_tokens=9)


def test_files_of_every_kind(tmp_path):
    (tmp_path / "a.txt").write_text("one\n\n  two\n")
    assert list(read_chats(tmp_path / "a.txt", "prompt")) == [user_message("one"), user_message("  two")]
    chat = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    rows = [{"question": "q"}, {"question": chat}, {"prompt": chat, "reward_model": {}}]
    (tmp_path / "b.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert list(read_chats(tmp_path / "b.jsonl", "question")) == [user_message("q"), chat, chat]


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(DataError, match=r"none\.txt: cannot be read: No such file"):
        list(read_chats(tmp_path / "none.txt", "prompt"))
    (tmp_path / "binary").write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(DataError, match="binary: cannot be read: 'utf-8' codec"):
        list(read_chats(tmp_path / "binary", "prompt"))
    (tmp_path / "c.jsonl").write_text('{"text": "q"}\n')
    with pytest.raises(DataError, match=r"c\.jsonl line 1: key prompt is missing"):
        list(read_chats(tmp_path / "c.jsonl", "prompt"))
