"""A tiny Qwen3, and two real engines with their router on it."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from vime_core.accelerators.cpu import CpuAccelerator
from vime_core.config.schema import AcceleratorConfig
from vime_core.models.geometry import ModelGeometry
from vime_core.plugins.interfaces import RolloutContext
from vime_vllm.config import VllmConfig

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

VOCAB = 120
"""No multiple of 64, so that the engines pad it."""
GEOMETRY = ModelGeometry(
    family="qwen3",
    num_layers=2,
    hidden_size=64,
    num_heads=2,
    num_kv_heads=1,
    head_dim=32,
    ffn_size=160,
    vocab_size=VOCAB,
    max_positions=1024,
    norm_eps=1e-6,
    rope_theta=10000.0,
    rope_scaling=None,
    tied_embeddings=False,
    qk_norm=True,
    attention_bias=False,
    activation="silu",
    init_std=0.3,
    eos_token_ids=(2,),
    pad_token_id=0,
)


def tiny_model(seed: int) -> Qwen3ForCausalLM:
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=GEOMETRY.hidden_size,
        intermediate_size=GEOMETRY.ffn_size,
        num_hidden_layers=GEOMETRY.num_layers,
        num_attention_heads=GEOMETRY.num_heads,
        num_key_value_heads=GEOMETRY.num_kv_heads,
        head_dim=GEOMETRY.head_dim,
        max_position_embeddings=GEOMETRY.max_positions,
        initializer_range=GEOMETRY.init_std,
        tie_word_embeddings=False,
        rope_theta=GEOMETRY.rope_theta,
        bos_token_id=None,
        eos_token_id=2,
        pad_token_id=0,
    )
    return Qwen3ForCausalLM(config).eval()


@pytest.fixture(scope="session")
def make_model() -> Callable[[int], Qwen3ForCausalLM]:
    """The model with random weights from a seed."""
    return tiny_model


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny-qwen3")
    tiny_model(0).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def make_context(model_folder: Path) -> Callable[..., RolloutContext]:
    """A context with chosen parts; without `keeper` nothing can be started with it."""

    def make(log_folder: Path, *, keeper: str = "", **config: object) -> RolloutContext:
        settings = VllmConfig(
            **{
                "num_engines": 2,
                "max_prompt_tokens": 512,
                "max_response_tokens": 256,
                "max_num_seqs": 128,
                **config,
            }
        )
        accelerator = CpuAccelerator(AcceleratorConfig(name="cpu"))
        environment = accelerator.child_environment((), 1)
        return RolloutContext(
            config=settings,
            model_path=model_folder,
            geometry=GEOMETRY,
            accelerator=accelerator,
            sync="shm",
            dtype="float32",
            run_id=secrets.token_hex(4),
            run_key=secrets.token_hex(16),
            seed=7,
            threads=1,
            engine_options=[{"num_cpus": 0.5, "runtime_env": {"env_vars": environment}}] * settings.num_engines,
            keeper=keeper,
            log_folder=log_folder,
            start_deadline=240.0,
            generate_deadline=120.0,
            stop_deadline=20.0,
        )

    return make
