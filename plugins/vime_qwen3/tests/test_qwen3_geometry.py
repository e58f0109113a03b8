"""Geometry from published and hand-made `config.json` contents."""

import json
import math

import pytest
from transformers import Qwen3Config

from vime_core.errors import ModelError
from vime_core.models.tensors import tensor_shapes
from vime_qwen3.qwen3 import Qwen3

# hidden, layers, heads, key-value heads, intermediate, tied: config.json of huggingface.co/Qwen/<name>
PUBLISHED = {
    "Qwen3-0.6B": (1024, 28, 16, 8, 3072, True),
    "Qwen3-1.7B": (2048, 28, 16, 8, 6144, True),
    "Qwen3-4B": (2560, 36, 32, 8, 9728, True),
    "Qwen3-8B": (4096, 36, 32, 8, 12288, False),
    "Qwen3-14B": (5120, 40, 40, 8, 17408, False),
    "Qwen3-32B": (5120, 64, 64, 8, 25600, False),
}
# "Number of Parameters" and "(Non-Embedding)" of the model cards, in units of 1e9
CARD_PARAMETERS = {
    "Qwen3-0.6B": (0.6, 0.44),
    "Qwen3-1.7B": (1.7, 1.4),
    "Qwen3-4B": (4.0, 3.6),
    "Qwen3-8B": (8.2, 6.95),
    "Qwen3-14B": (14.8, 13.2),
    "Qwen3-32B": (32.8, 31.2),
}
GENERATION = {"bos_token_id": 151643, "eos_token_id": [151645, 151643], "pad_token_id": 151643, "temperature": 0.6}


def geometry(generation=None, **changes):
    config = {**Qwen3().tiny(), **changes}
    return Qwen3().geometry({key: value for key, value in config.items() if value != "absent"}, generation)


def published_config(name):
    hidden, layers, heads, kv_heads, intermediate, tied = PUBLISHED[name]
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 151643,
        "eos_token_id": 151645,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "initializer_range": 0.02,
        "intermediate_size": intermediate,
        "max_position_embeddings": 40960,
        "max_window_layers": layers,
        "model_type": "qwen3",
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "num_key_value_heads": kv_heads,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "sliding_window": None,
        "tie_word_embeddings": tied,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.51.0",
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": 151936,
    }


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_published_models(name):
    found = Qwen3().geometry(published_config(name), GENERATION)
    sizes = (found.hidden_size, found.num_layers, found.num_heads, found.num_kv_heads, found.ffn_size)
    assert (*sizes, found.tied_embeddings) == PUBLISHED[name]
    assert (found.head_dim, found.vocab_size, found.max_positions) == (128, 151_936, 40_960)
    assert (found.rope_theta, found.rope_scaling, found.norm_eps) == (1e6, None, 1e-6)
    assert found.qk_norm
    assert not found.attention_bias
    assert found.eos_token_ids == (151_645, 151_643)
    assert found.pad_token_id == 151_643
    assert found.experts is None


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_parameter_counts_are_those_of_the_model_cards(name):
    family = Qwen3()
    found = family.geometry(published_config(name), GENERATION)
    sizes = {tensor: math.prod(shape) for tensor, shape in tensor_shapes(found, family.tensor_map(found)).items()}
    embeddings = sum(
        size for tensor, size in sizes.items() if tensor in ("model.embed_tokens.weight", "lm_head.weight")
    )
    total, without_embeddings = CARD_PARAMETERS[name]
    assert sum(sizes.values()) / 1e9 == pytest.approx(total, abs=0.05)
    assert (sum(sizes.values()) - embeddings) / 1e9 == pytest.approx(without_embeddings, abs=0.05)


def test_matches_dense_qwen3_only():
    family = Qwen3()
    assert family.matches(family.tiny())
    assert family.matches({"architectures": ["Qwen3ForCausalLM"]})
    assert not family.matches({"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"]})
    assert not family.matches({"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]})
    assert not family.matches({})


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_theta": 5e5},
        {"rope_theta": "absent"},
        {"rope_theta": 3_000_000, "rope_scaling": {"type": "yarn", "factor": 4.0}},
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}},
        {"rope_scaling": {"type": "linear", "factor": 2.0}},
        {"rope_theta": "absent", "rope_parameters": {"rope_theta": 7e5, "rope_type": "default"}},
        {"rope_theta": "absent", "rope_parameters": {"rope_theta": 7e5, "rope_type": "linear", "factor": 2.0}},
        {"rope_theta": 1e6, "rope_parameters": {"rope_type": "linear", "factor": 2.0}},
        {"rope_theta": 1e6, "rope_parameters": {"rope_theta": 7e5, "rope_type": "linear", "factor": 2.0}},
        {
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 128,
            }
        },
        {"head_dim": "absent"},
    ],
)
def test_agrees_with_transformers_on_rope_and_head_dim(changes):
    config = {key: value for key, value in {**Qwen3().tiny(), **changes}.items() if value != "absent"}
    found = Qwen3().geometry(config, None)
    reference = Qwen3Config.from_dict(json.loads(json.dumps(config)))
    expected = {key: value for key, value in reference.rope_parameters.items() if key != "type"}
    assert found.head_dim == reference.head_dim
    assert found.rope_theta == expected.pop("rope_theta")
    assert found.rope_scaling == (None if expected["rope_type"] == "default" else expected)


def test_reads_what_transformers_5_writes(tmp_path):
    reference = Qwen3Config.from_dict({**Qwen3().tiny(), "rope_theta": 2e5, "rope_scaling": None})
    reference.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert "rope_parameters" in saved
    assert Qwen3().geometry(saved, None) == geometry(rope_theta=2e5)


@pytest.mark.parametrize(
    ("in_generation", "in_config", "expected"),
    [
        ([7, 5], 5, (7, 5)),
        (7, [5, 7], (7, 5)),
        (None, [5, 6], (5, 6)),
        ([5, 5], None, (5,)),
        (0, None, (0,)),
        (None, None, ()),
    ],
)
def test_eos_ids_are_the_union_in_order(in_generation, in_config, expected):
    generation = None if in_generation is None else {"eos_token_id": in_generation}
    assert geometry(generation, eos_token_id=in_config).eos_token_ids == expected


def test_pad_id_zero_is_kept_and_generation_config_fills_in():
    assert geometry({"pad_token_id": 9}, pad_token_id=0).pad_token_id == 0
    assert geometry({"pad_token_id": 9}, pad_token_id=None).pad_token_id == 9
    assert geometry(None, pad_token_id=None).pad_token_id is None


def test_window_that_is_configured_off_is_accepted():
    assert geometry(use_sliding_window=False, sliding_window=4096, max_window_layers=0)
    assert geometry(use_sliding_window=True, sliding_window=4096, max_window_layers=2)
    assert geometry(layer_types=["full_attention", "full_attention"])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_size": "absent"}, "hidden_size is missing"),
        ({"num_key_value_heads": None}, "num_key_value_heads is missing"),
        ({"hidden_size": "64"}, "hidden_size must be a whole number above 0, not '64'"),
        ({"num_hidden_layers": True}, "num_hidden_layers must be a whole number"),
        ({"vocab_size": 0}, "vocab_size must be a whole number above 0"),
        ({"num_key_value_heads": 3}, "num_attention_heads 4 must be a multiple of num_key_value_heads 3"),
        ({"head_dim": 33}, "head_dim 33 must be even"),
        ({"head_dim": None}, "head_dim is missing"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"attention_bias": True}, "attention_bias"),
        ({"use_sliding_window": True, "sliding_window": 128, "max_window_layers": 1}, "use_sliding_window to false"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding-window"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "rope type 'dynamic'"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "factor is missing"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e6}}}, "one flat object"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
        ({"rope_theta": -1}, "rope_theta must be a number above 0"),
        ({"rms_norm_eps": "1e-6"}, "rms_norm_eps must be a number"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings must be true or false"),
        ({"eos_token_id": 128}, "eos_token_id 128 is not a token id of a vocabulary of 128"),
        ({"pad_token_id": "<pad>"}, "pad_token_id '<pad>'"),
    ],
)
def test_refuses_with_one_line(changes, words):
    with pytest.raises(ModelError, match=r"config\.json: ") as caught:
        geometry(**changes)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
