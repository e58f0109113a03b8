import pytest

from vime_core.config.schema import RolloutConfig
from vime_core.data.tokenizer import Tokenizer
from vime_core.testing.tokenizers import write_byte_tokenizer
from vime_core.types import Prompt, SamplingParams


@pytest.fixture
def make_prompt():
    """A prompt whose only token is its number."""

    def make(number):
        return Prompt(id=f"p{number}", messages=(), token_ids=(number,), label=str(number))

    return make


@pytest.fixture
def make_config():
    def make(**settings):
        defaults = {"name": "scripted", "prompts_per_step": 4, "samples_per_prompt": 2, "max_response_tokens": 8}
        return RolloutConfig(**defaults | settings)

    return make


@pytest.fixture
def make_params():
    def make(count, max_tokens=8):
        return [SamplingParams(1.0, 1.0, -1, max_tokens, (0,), seed) for seed in range(count)]

    return make


@pytest.fixture(scope="session")
def byte_tokenizer(tmp_path_factory):
    return Tokenizer(write_byte_tokenizer(tmp_path_factory.mktemp("byte_tokenizer")))
