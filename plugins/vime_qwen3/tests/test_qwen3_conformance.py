"""The standard tests of model families."""

from vime_core.testing import ModelFamilySuite


class TestQwen3(ModelFamilySuite):
    entry = "qwen3"


class TestQwen3Moe(ModelFamilySuite):
    entry = "qwen3_moe"
