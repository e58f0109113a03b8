"""What rollout functions work with, over a real tokenizer with a real chat template."""

import asyncio

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vime_core.data.tokenizer import Tokenizer
from vime_core.errors import DataError
from vime_core.rollout.tools import Tools
from vime_core.testing.fakes import ScriptedGenerator, ScriptedScorer
from vime_core.testing.prompts import make_prompt
from vime_core.testing.samples import make_sample
from vime_core.testing.tokenizers import write_byte_tokenizer
from vime_core.types import SamplingParams, Verdict, keep_parts

END = 258
HINT = [{"role": "user", "content": "Try again."}]


@pytest.fixture
def tools(byte_tokenizer):
    def verdict(sample, prompt):
        keep_parts(sample, {"a": Verdict(0.5, "wrong"), "b": Verdict(0.5, "wrong")})
        return Verdict(1.0, "correct", sample.response_text, prompt.label)

    return Tools(ScriptedGenerator(lambda request: [len(request.token_ids)]), ScriptedScorer(verdict), byte_tokenizer)


@given(question=st.text(max_size=20), answer=st.text(max_size=20), hint=st.text(max_size=20), ended=st.booleans())
def test_turns_make_the_sequence_that_the_chat_template_makes(byte_tokenizer, question, answer, hint, ended):
    tools = Tools(None, None, byte_tokenizer)
    chat = [{"role": "user", "content": question}]
    response = byte_tokenizer.encode_batch([answer])[0] + [END] * ended
    sequence = byte_tokenizer.encode_chat(chat) + response
    sequence += tools.next_turn(response, [{"role": "user", "content": hint}])
    whole = [*chat, {"role": "assistant", "content": answer}, {"role": "user", "content": hint}]
    assert sequence == byte_tokenizer.encode_chat(whole)


def test_an_array_without_tokens_is_a_response_too(tools):
    assert tools.next_turn(np.array([], np.int64), HINT)[0] == END


def test_text_goes_both_ways(tools):
    assert tools.decode(tools.encode("Zähler<|im_end|>"), skip_special=False) == "Zähler<|im_end|>"
    assert tools.decode(tools.encode("Zähler<|im_end|>")) == "Zähler"


def test_a_check_judges_the_text_so_far_and_leaves_the_sample_alone(tools):
    sample = make_sample(2, 3)
    sample.response_ids = np.array(tools.encode("42"))
    sample.metadata["turns"] = 1
    verdict = asyncio.run(tools.check(sample, make_prompt(label="43")))
    assert verdict == Verdict(1.0, "correct", "42", "43")
    assert (sample.response_text, sample.verdict, sample.metadata) == ("", None, {"turns": 1})


def test_generation_is_that_of_the_engines(tools):
    completion = asyncio.run(tools.generate([1, 2, 3], SamplingParams(1.0, 1.0, -1, 8, (0,), 0)))
    assert completion.token_ids.tolist() == [3]


@pytest.mark.parametrize(
    "template", ["{{ messages[-1]['content'] }}", "{% for m in messages * 2 %}{{ m.content }}{% endfor %}"]
)
def test_a_template_for_one_turn_is_named(tmp_path, template):
    tokenizer = Tokenizer(write_byte_tokenizer(tmp_path, chat_template=template))
    with pytest.raises(DataError, match="does not show a response once: it is for one turn only"):
        tokenizer.render_turn(HINT)
