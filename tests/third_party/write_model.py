"""Writes a tiny random Qwen3 with a byte tokenizer; run by the python of an environment, with the folder."""

import sys
from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from vime_core.testing.tokenizers import write_byte_tokenizer

folder = Path(sys.argv[1])
folder.mkdir()
write_byte_tokenizer(folder)
torch.manual_seed(0)
config = Qwen3Config(
    vocab_size=259,
    hidden_size=64,
    intermediate_size=160,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    max_position_embeddings=1024,
    tie_word_embeddings=True,
    initializer_range=0.1,
    bos_token_id=None,
    eos_token_id=258,
    pad_token_id=None,
)
Qwen3ForCausalLM(config).save_pretrained(folder)
