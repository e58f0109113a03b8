import json

import pytest

from vime_core.config.schema import AlgorithmConfig, Config, RolloutConfig
from vime_core.config.validate import check_lengths, check_model, check_sampling
from vime_core.errors import ConfigError, ModelError
from vime_core.models.geometry import ModelGeometry
from vime_core.plugins.interfaces import Needs

GEOMETRY = ModelGeometry(
    family="acme",
    num_layers=1,
    hidden_size=8,
    num_heads=1,
    num_kv_heads=1,
    head_dim=8,
    ffn_size=8,
    vocab_size=8,
    max_positions=100,
    norm_eps=1e-6,
    rope_theta=1e4,
    rope_scaling=None,
    tied_embeddings=True,
    qk_norm=False,
    attention_bias=False,
    activation="silu",
    init_std=0.02,
    eos_token_ids=(1,),
    pad_token_id=None,
)


def with_rollout(**settings: object) -> Config:
    return Config(rollout=RolloutConfig(name="acme", **settings), algorithm=AlgorithmConfig(name="acme"))  # type: ignore[arg-type]


def needs(rollout_logprobs: bool) -> Needs:
    return Needs(old_logprobs=False, ref_logprobs=False, rollout_logprobs=rollout_logprobs, entropy=False)


def test_the_longest_sample_must_fit_the_model():
    check_lengths(with_rollout(max_prompt_tokens=60, max_response_tokens=40), GEOMETRY, {})
    with pytest.raises(ConfigError) as caught:
        check_lengths(with_rollout(max_prompt_tokens=60, max_response_tokens=41), GEOMETRY, {})
    assert "max_prompt_tokens=60 plus rollout.max_response_tokens=41 are 101 tokens, but the model has 100" in str(
        caught.value
    )


@pytest.mark.parametrize(("settings", "fault"), [({"top_p": 0.9}, "top_p=0.9"), ({"top_k": 20}, "top_k=20")])
def test_rollout_logprobs_of_a_truncated_distribution_are_refused(settings, fault):
    check_sampling(with_rollout(**settings), needs(rollout_logprobs=False), {})
    check_sampling(with_rollout(), needs(rollout_logprobs=True), {})
    with pytest.raises(ConfigError, match=fault):
        check_sampling(with_rollout(**settings), needs(rollout_logprobs=True), {})


def test_a_model_folder_is_checked_with_the_families_there_are(site, acme, tmp_path):
    composed = acme(f"model.path={tmp_path}/nosuch", "data.train=/d")
    with pytest.raises(ModelError, match="nosuch is not a folder"):
        check_model(composed)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "acme"}))
    with pytest.raises(ModelError, match="is of no known family"):
        check_model(acme(f"model.path={tmp_path}", "data.train=/d"))


def test_a_chosen_family_is_the_only_one_that_is_asked(site, acme, tmp_path):
    source = """
        from vime_core import hookimpl
        from vime_core.config.schema import ModelConfig
        from vime_core.plugins.entries import ModelEntry

        @hookimpl
        def vime_models():
            yield ModelEntry(name="one", summary="", config=ModelConfig, factory="families.parts:One")
            yield ModelEntry(name="two", summary="", config=ModelConfig, factory="families.parts:Two")
    """
    parts = """
        class One:
            def matches(self, config): return config["model_type"] == "acme"
            def geometry(self, config, generation_config):
                from vime_core.errors import ModelError
                raise ModelError("geometry of one")

        class Two:
            def __init__(self): raise RuntimeError("asked")
    """
    site.install("families", {"families": "families.hooks"}, {"families/hooks.py": source, "families/parts.py": parts})
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "acme"}))
    with pytest.raises(ModelError, match="geometry of one"):
        check_model(acme(f"model.path={tmp_path}", "data.train=/d", "model=one"))
    with pytest.raises(RuntimeError, match="asked") as caught:
        check_model(acme(f"model.path={tmp_path}", "data.train=/d"))
    assert caught.value.__notes__ == ["raised by plugin families (families 1.0), in model 'two'"]
