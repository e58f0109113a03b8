"""Conformance of model families."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any
from unittest import SkipTest

from vime_core.errors import ModelError
from vime_core.models.tensors import parameters, tensor_shapes
from vime_core.plugins.interfaces import ModelFamily
from vime_core.testing.contract import Nonconformance, require, require_equal
from vime_core.testing.suite import IMPORT_DEADLINE_S, ComponentSuite, need

if TYPE_CHECKING:
    from vime_core.models.geometry import ModelGeometry, TensorRule

ROLES = frozenset(
    {
        "embedding",
        "layer.input_norm",
        "layer.attention.qkv",
        "layer.attention.q_norm",
        "layer.attention.k_norm",
        "layer.attention.out",
        "layer.post_attention_norm",
        "layer.mlp.gate_up",
        "layer.mlp.down",
        "final_norm",
        "output",
        "layer.moe.router",
        "layer.moe.expert.gate_up",
        "layer.moe.expert.down",
    }
)
"""Of `TensorRule.role`."""

PARTS = {"copy": 1, "qkv": 3, "gate_up": 2}
"""Transform -> tensors of the checkpoint that make up the parameter."""

MOST_PARAMETERS = 20_000_000
"""Of a tiny model."""

WRONG_VALUES: tuple[Any, ...] = ("four", -1, 0, 2.5, None, [], {})

_LIGHT_PROGRAM = """
import sys; sys.path[:] = {path!r}
from importlib import import_module
module, _, name = {factory!r}.partition(":")
family = getattr(import_module(module), name)()
family.tensor_map(family.geometry(family.tiny(), None))
print("torch" in sys.modules or "transformers" in sys.modules)
"""


class ModelFamilySuite(ComponentSuite):
    """Tests of a model family, on its own tiny model."""

    group = "model"
    interface = ModelFamily

    def make(self) -> Any:
        """Model families take no settings."""
        return self.build()

    def test_it_knows_its_own_models_only(self) -> None:
        """`model=auto` asks every family there is."""
        family = self.make()
        require(family.matches(family.tiny()) is True, "the family does not match its own tiny model")
        others: list[dict[str, Any]] = [{}, {"model_type": "nosuch"}, {"model_type": None, "architectures": None}]
        for other in [*others, {"architectures": []}]:
            require(family.matches(other) is False, f"the family must not match {other}, and say so with False")

    def test_the_tiny_model_is_small_and_plain(self) -> None:
        """It is written as `config.json`."""
        family = self.make()
        tiny = family.tiny()
        try:
            require_equal(json.loads(json.dumps(tiny)), tiny, "the tiny configuration after a trip through JSON")
        except TypeError as error:
            raise Nonconformance(f"the tiny configuration cannot be written as JSON: {error}") from error
        expected = json.loads(json.dumps(tiny))
        tiny["model_type"] = "changed"
        require_equal(family.tiny(), expected, "the tiny configuration after a caller changed the one before")
        geometry, rules = self.tiny_model()
        size = sum(_size(shape) for shape in tensor_shapes(geometry, rules).values())
        require(size <= MOST_PARAMETERS, f"the tiny model has {size} parameters, more than {MOST_PARAMETERS}")

    def test_the_geometry_is_consistent(self) -> None:
        """Heads divide, sizes are positive, end-of-sequence ids are tokens."""
        geometry, _ = self.tiny_model()
        for name in ("num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_dim", "ffn_size", "vocab_size"):
            value = getattr(geometry, name)
            require(isinstance(value, int) and value > 0, f"{name} must be a whole number above 0, not {value!r}")
        require(geometry.num_heads % geometry.num_kv_heads == 0, "num_heads must be a multiple of num_kv_heads")
        require(geometry.head_dim % 2 == 0, "head_dim must be even: rotary positions turn pairs")
        require(bool(geometry.eos_token_ids), "the tiny model has no end-of-sequence token")
        require(
            all(0 <= i < geometry.vocab_size for i in geometry.eos_token_ids), "an eos token is not in the vocabulary"
        )

    def test_a_damaged_configuration_is_a_model_error(self) -> None:
        """Every key that is missing or of a wrong kind: one line for the user, or a default."""
        family = self.make()
        for key in family.tiny():
            left = {name: value for name, value in family.tiny().items() if name != key}
            self.require_told(left, f"without {key}")
            for value in WRONG_VALUES:
                self.require_told({**family.tiny(), key: value}, f"with {key}={value!r}")
        for key in ("num_hidden_layers", "hidden_size", "vocab_size"):
            if key in family.tiny():
                left = {name: value for name, value in family.tiny().items() if name != key}
                told = self.require_told(left, f"without {key}")
                require(told is not None, f"without {key} there is no model, but geometry gives one")
                require(key in str(told), f"the ModelError must name the missing key {key}, not {str(told)!r}")

    def test_the_tensor_map_names_every_parameter_once(self) -> None:
        """In the order embedding, layers, final norm, output; the output is left out when it is the embedding."""
        geometry, rules = self.tiny_model()
        roles = [rule.role for rule in rules]
        require(set(roles) <= ROLES, f"unknown roles: {sorted(set(roles) - ROLES)}")
        repeated = [role for role, count in Counter(roles).items() if count > 1]
        require(not repeated, f"roles that are there twice: {repeated}")
        require_equal("output" in roles, not geometry.tied_embeddings, "whether there is an output projection")
        places = [_place(role) for role in roles]
        require(places == sorted(places), f"the order must be embedding, layers, final norm, output, not {roles}")
        for role in ("embedding", "layer.attention.qkv", "layer.attention.out", "final_norm"):
            require(role in roles, f"there is no rule for {role}")
        names = [name for rule in rules for name in rule.hf_names]
        require(len(names) == len(set(names)), "a tensor of the checkpoint is there twice")

    def test_every_rule_fits_the_geometry(self) -> None:
        """Names, shapes, transforms."""
        geometry, rules = self.tiny_model()
        for rule in rules:
            count = PARTS[rule.transform]
            require_equal(len(rule.hf_names), count, f"the number of tensors of {rule.role} ({rule.transform})")
            require_equal(len(rule.hf_shapes), count, f"the number of shapes of {rule.role}")
            for name in rule.hf_names:
                require_equal("{layer}" in name, rule.role.startswith("layer."), f"whether {name} holds {{layer}}")
                require_equal("{expert}" in name, ".expert." in rule.role, f"whether {name} holds {{expert}}")
            expected = _shapes(rule.role, geometry)
            if expected:
                require_equal(rule.hf_shapes, expected, f"the shapes of {rule.role}")

    def test_the_tensors_are_those_of_transformers(self) -> None:
        """Names and shapes of the same configuration in transformers, where it knows the architecture."""
        need("torch", "transformers")
        from transformers import AutoConfig, AutoModelForCausalLM

        tiny = self.make().tiny()
        if tiny.get("model_type") not in _known_to_transformers():
            raise SkipTest(f"transformers knows no model_type {tiny.get('model_type')!r}")
        settings = {key: value for key, value in tiny.items() if key != "model_type"}
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(tiny["model_type"], **settings))
        expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
        geometry, rules = self.tiny_model()
        if geometry.tied_embeddings:
            expected = {name: shape for name, shape in expected.items() if name != "lm_head.weight"}
        found = _as_in_memory(geometry, rules)
        differing = sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))
        told = [f"{name}: {found.get(name)}, transformers {expected.get(name)}" for name in differing[:3]]
        require(not differing, f"{len(differing)} tensors differ: {'; '.join(told)}")

    def test_it_needs_no_torch(self) -> None:
        """`vime config` asks it."""
        program = _LIGHT_PROGRAM.format(path=list(sys.path), factory=self.component().entry.factory)
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=IMPORT_DEADLINE_S, check=False
        )
        require(done.returncode == 0, f"the family fails in a fresh process: {done.stderr.strip()[-300:]}")
        require(done.stdout.split()[-1] == "False", "the family imports torch or transformers")

    def tiny_model(self) -> tuple[ModelGeometry, list[TensorRule]]:
        """Geometry and tensor map of the tiny model."""
        family = self.make()
        geometry = family.geometry(family.tiny(), None)
        return geometry, list(family.tensor_map(geometry))

    def require_told(self, config: dict[str, Any], when: str) -> ModelError | None:
        """The ModelError of a damaged configuration, or None when the family has a default."""
        family = self.make()
        try:
            family.tensor_map(family.geometry(config, None))
        except ModelError as error:
            require("\n" not in str(error), f"{when} the ModelError has several lines")
            return error
        except Exception as error:
            raise Nonconformance(f"{when} geometry raises {type(error).__name__}: {error}, not ModelError") from error
        return None


def _place(role: str) -> int:
    return {"embedding": 0, "final_norm": 2, "output": 3}.get(role, 1)


def _shapes(role: str, geometry: ModelGeometry) -> tuple[tuple[int, ...], ...] | None:
    """The shapes that a role has in every checkpoint; None where experts decide."""
    hidden, head, ffn = geometry.hidden_size, geometry.head_dim, geometry.ffn_size
    queries, keys = geometry.num_heads * head, geometry.num_kv_heads * head
    table, norm = ((geometry.vocab_size, hidden),), ((hidden,),)
    return {
        "embedding": table,
        "output": table,
        "final_norm": norm,
        "layer.input_norm": norm,
        "layer.post_attention_norm": norm,
        "layer.attention.qkv": ((queries, hidden), (keys, hidden), (keys, hidden)),
        "layer.attention.out": ((hidden, queries),),
        "layer.mlp.gate_up": ((ffn, hidden), (ffn, hidden)),
        "layer.mlp.down": ((hidden, ffn),),
    }.get(role)


def _as_in_memory(geometry: ModelGeometry, rules: list[TensorRule]) -> dict[str, tuple[int, ...]]:
    """Shapes with the parameters of experts stacked, as transformers holds them."""
    shapes: dict[str, tuple[int, ...]] = {}
    for item in parameters(geometry, rules):
        parts = item.rule.hf_shapes
        if item.stacked_name is None or geometry.experts is None:
            shapes |= zip(item.hf_names, parts, strict=True)
        else:
            shapes[item.stacked_name] = (geometry.experts.num_experts, sum(p[0] for p in parts), *parts[0][1:])
    return shapes


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for extent in shape:
        size *= extent
    return size


def _known_to_transformers() -> frozenset[str]:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return frozenset(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
