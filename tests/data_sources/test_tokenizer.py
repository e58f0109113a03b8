import json
import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from vime_core.data.tokenizer import Tokenizer
from vime_core.errors import DataError, ModelError
from vime_core.testing.tokenizers import SPECIAL_TOKENS, write_byte_tokenizer

CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Wie viel ist 2 + 3 ? 🙂\n"}]

plain_text = st.text(st.characters(exclude_categories=["Cs"])).filter(lambda s: not any(t in s for t in SPECIAL_TOKENS))


@settings(deadline=None)
@given(text=plain_text)
def test_any_text_makes_the_round_trip(tokenizer, text):
    [ids] = tokenizer.encode_batch([text])
    assert len(ids) == len(text.encode())
    assert tokenizer.decode(ids) == text


def test_a_chat_is_encoded_as_transformers_does(tokenizer, tokenizer_folder):
    reference = AutoTokenizer.from_pretrained(tokenizer_folder).apply_chat_template(
        CHAT, tokenize=True, add_generation_prompt=True, return_dict=False
    )
    assert tokenizer.encode_chat(CHAT) == reference
    assert tokenizer.encode_batch([tokenizer.render(CHAT)] * 2) == [reference] * 2


def test_the_generation_prompt_ends_the_chat(tokenizer):
    assert tokenizer.render(CHAT).endswith("<|im_start|>assistant\n")


def test_special_tokens_are_single_and_left_out_of_the_text(tokenizer):
    [ids] = tokenizer.encode_batch(["a<|im_end|>b"])
    assert len(ids) == 3
    assert tokenizer.decode(ids) == "ab"
    assert tokenizer.decode(ids, skip_special=False) == "a<|im_end|>b"


def test_only_the_template_sets_special_tokens(tokenizer, tokenizer_folder, tmp_path):
    """Some tokenizers put a token before every text; a template that has it too would double it."""
    folder = shutil.copytree(tokenizer_folder, tmp_path / "bos")
    content = json.loads((folder / "tokenizer.json").read_text())
    start = {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [start, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [start, {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [256], "tokens": ["<|endoftext|>"]}},
    }
    (folder / "tokenizer.json").write_text(json.dumps(content))
    assert AutoTokenizer.from_pretrained(folder)("a")["input_ids"] == [256, *tokenizer.encode_batch(["a"])[0]]
    assert Tokenizer(folder).encode_chat(CHAT) == tokenizer.encode_chat(CHAT)


def test_no_text_is_no_batch(tokenizer):
    assert tokenizer.encode_batch([]) == []


def test_a_template_file_replaces_the_tokenizers_own(tokenizer_folder, tmp_path):
    template = tmp_path / "template.jinja"
    template.write_text("{{ messages[-1]['content'] }}=")
    changed = Tokenizer(tokenizer_folder, template)
    assert changed.decode(changed.encode_chat([{"role": "user", "content": "1+1"}])) == "1+1="


def test_a_tokenizer_without_template_says_what_to_set(tmp_path):
    bare = Tokenizer(write_byte_tokenizer(tmp_path, chat_template=None))
    with pytest.raises(ModelError, match=r"no chat template; set model\.chat_template"):
        bare.encode_chat(CHAT)


def test_a_chat_that_the_template_refuses_is_a_data_error(tmp_path):
    strict = Tokenizer(write_byte_tokenizer(tmp_path, chat_template="{{ raise_exception('roles must alternate') }}"))
    with pytest.raises(DataError, match="roles must alternate"):
        strict.render(CHAT)


def test_the_fingerprint_follows_vocabulary_and_template(tokenizer, tokenizer_folder, tmp_path):
    assert Tokenizer(tokenizer_folder).fingerprint == tokenizer.fingerprint
    other_template = Tokenizer(write_byte_tokenizer(tmp_path / "template", chat_template="{{ messages }}"))
    assert other_template.fingerprint != tokenizer.fingerprint
    shutil.copytree(tokenizer_folder, tmp_path / "vocabulary")
    content = json.loads((tmp_path / "vocabulary" / "tokenizer.json").read_text())
    vocabulary = content["model"]["vocab"]
    vocabulary["A"], vocabulary["B"] = vocabulary["B"], vocabulary["A"]
    (tmp_path / "vocabulary" / "tokenizer.json").write_text(json.dumps(content))
    assert Tokenizer(tmp_path / "vocabulary").fingerprint != tokenizer.fingerprint


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(ModelError, match=r"model\.path=.*nowhere: no such folder"):
        Tokenizer(tmp_path / "nowhere")


def test_a_folder_without_vocabulary_is_refused(tmp_path):
    """transformers makes an empty tokenizer from the model type alone."""
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}')
    with pytest.raises(ModelError, match=r"no tokenizer; one of tokenizer\.json"):
        Tokenizer(tmp_path)


def test_a_broken_tokenizer_file_is_one_line(tokenizer_folder, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(tokenizer_folder, broken)
    (broken / "tokenizer.json").write_text('{"added_tokens": [')
    with pytest.raises(ModelError, match="cannot be loaded") as caught:
        Tokenizer(broken)
    assert "\n" not in str(caught.value)


def test_a_missing_template_file_is_named(tokenizer_folder, tmp_path):
    with pytest.raises(ModelError, match=r"model\.chat_template=.*none\.jinja"):
        Tokenizer(tokenizer_folder, tmp_path / "none.jinja")
