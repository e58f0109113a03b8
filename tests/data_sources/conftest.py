import json

import pytest

from vime_core.data.tokenizer import Tokenizer
from vime_core.testing.tokenizers import write_byte_tokenizer


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory):
    return write_byte_tokenizer(tmp_path_factory.mktemp("byte_tokenizer"))


@pytest.fixture(scope="session")
def tokenizer(tokenizer_folder):
    return Tokenizer(tokenizer_folder)


@pytest.fixture
def write_jsonl(tmp_path):
    def write(rows, name="prompts.jsonl"):
        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    return write
