from hypothesis import given
from hypothesis import strategies as st

from examples.quickstart.tokenizer import IM_END, SPECIAL_TOKENS, build_tokenizer
from vime_core.data.tokenizer import Tokenizer

TOKENIZER = build_tokenizer()


@given(st.text())
def test_any_text_round_trips(text):
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


@given(st.text().filter(lambda text: "<|" not in text))
def test_a_token_is_a_byte(text):
    assert TOKENIZER.encode(text) == list(text.encode())


def test_special_tokens_follow_the_bytes_and_are_one_token_each():
    assert len(TOKENIZER) == 259
    assert [TOKENIZER.encode(token) for token in SPECIAL_TOKENS] == [[256], [257], [258]]
    assert TOKENIZER.eos_token == IM_END


def test_special_tokens_are_left_out_of_the_text_of_a_response():
    ids = TOKENIZER.encode(f"Answer: 72{IM_END}")
    assert TOKENIZER.decode(ids, skip_special_tokens=True) == "Answer: 72"
    assert TOKENIZER.decode(ids) == f"Answer: 72{IM_END}"


def test_the_chat_template_renders_roles_turns_and_the_generation_prompt():
    chat = [{"role": "system", "content": "Add."}, {"role": "user", "content": "27+45="}]
    rendered = TOKENIZER.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert rendered == (
        "<|im_start|>system\nAdd.<|im_end|>\n<|im_start|>user\n27+45=<|im_end|>\n<|im_start|>assistant\n"
    )
    assert TOKENIZER.apply_chat_template(chat, tokenize=False) == rendered.removesuffix("<|im_start|>assistant\n")


def test_the_saved_tokenizer_is_the_same_to_vime(assets, tokenizer):
    loaded = Tokenizer(assets / "model")
    chat = [{"role": "user", "content": "naïve 👍\r\n  27 + 45 , ="}]
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert loaded.render(chat) == text
    assert loaded.encode_chat(chat) == tokenizer.encode(text)
    assert loaded.decode(loaded.encode_chat(chat), skip_special=False) == text
