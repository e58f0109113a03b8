"""The standard tests of model families."""

from vime_core.testing import ModelFamilySuite


class TestConformance(ModelFamilySuite):
    entry = "qwen3"
