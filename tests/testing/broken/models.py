"""Model families: `Good`, and others that are wrong in one way. The docstring says how, and which test finds it."""

from dataclasses import replace

from vime_core.testing.models import TinyFamily


class Good(TinyFamily):
    """The tiny model."""


class MatchesEverything(Good):
    """test_it_knows_its_own_models_only: takes the models of other families."""

    def matches(self, hf_config):
        return True


class NeedsModelType(Good):
    """test_it_knows_its_own_models_only: raises KeyError for a configuration without model_type."""

    def matches(self, hf_config):
        return hf_config["model_type"] == "vime_tiny"


class SharesItsTiny(Good):
    """test_the_tiny_model_is_small_and_plain: hands out one dictionary, which callers change."""

    shared = TinyFamily().tiny()

    def tiny(self):
        return self.shared


class HugeTiny(Good):
    """test_the_tiny_model_is_small_and_plain: a tiny model of a billion parameters."""

    def tiny(self):
        return {**super().tiny(), "vocab_size": 150_000, "hidden_size": 4096}


class NoEnd(Good):
    """test_the_geometry_is_consistent: no end-of-sequence token."""

    def geometry(self, hf_config, generation_config):
        return replace(super().geometry(hf_config, generation_config), eos_token_ids=())


class HeadsDoNotDivide(Good):
    """test_the_geometry_is_consistent: 4 heads over 3 key-value heads."""

    def geometry(self, hf_config, generation_config):
        return replace(super().geometry(hf_config, generation_config), num_kv_heads=3)


class RaisesKeyError(Good):
    """test_a_damaged_configuration_is_a_model_error: a missing key is a KeyError."""

    def geometry(self, hf_config, generation_config):
        hidden_size = hf_config["hidden_size"]
        return replace(super().geometry(hf_config, generation_config), hidden_size=hidden_size)


class DefaultsForEverything(Good):
    """test_a_damaged_configuration_is_a_model_error: guesses the number of layers."""

    def geometry(self, hf_config, generation_config):
        return super().geometry({"num_hidden_layers": 2, **hf_config}, generation_config)


class Twice(Good):
    """test_the_tensor_map_names_every_parameter_once: the final norm is there twice."""

    def tensor_map(self, geometry):
        rules = super().tensor_map(geometry)
        return [*rules[:-1], rules[-2], rules[-1]]


class OutputFirst(Good):
    """test_the_tensor_map_names_every_parameter_once: not in the order of the forward pass."""

    def tensor_map(self, geometry):
        return super().tensor_map(geometry)[::-1]


class UnknownRole(Good):
    """test_the_tensor_map_names_every_parameter_once: a role that no backend knows."""

    def tensor_map(self, geometry):
        rules = super().tensor_map(geometry)
        return [rules[0], replace(rules[1], role="layer.rmsnorm"), *rules[2:]]


class SwappedProjection(Good):
    """test_every_rule_fits_the_geometry: columns and rows of the down projection swapped."""

    def tensor_map(self, geometry):
        return [
            replace(rule, hf_shapes=(rule.hf_shapes[0][::-1],)) if rule.role == "layer.mlp.down" else rule
            for rule in super().tensor_map(geometry)
        ]


class NoLayerInTheName(Good):
    """test_every_rule_fits_the_geometry: one name for the tensors of all layers."""

    def tensor_map(self, geometry):
        return [
            replace(rule, hf_names=("model.norm1.weight",)) if rule.role == "layer.input_norm" else rule
            for rule in super().tensor_map(geometry)
        ]


class LlamaWithoutNorms(Good):
    """test_the_tensors_are_those_of_transformers: leaves out a tensor that the checkpoint has."""

    def matches(self, hf_config):
        return hf_config.get("model_type") == "llama"

    def tiny(self):
        return {
            **super().tiny(),
            "model_type": "llama",
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "intermediate_size": 48,
            "tie_word_embeddings": False,
        }

    def tensor_map(self, geometry):
        return [rule for rule in super().tensor_map(geometry) if rule.role != "layer.post_attention_norm"]


class ImportsTorch(Good):
    """test_it_needs_no_torch: imports torch to read numbers."""

    def geometry(self, hf_config, generation_config):
        import torch

        return replace(super().geometry(hf_config, generation_config), norm_eps=float(torch.tensor(1e-6)))


class NoTensorMap:
    """test_the_component_has_the_methods_of_its_kind: nothing but `matches`."""

    def matches(self, hf_config):
        return False
