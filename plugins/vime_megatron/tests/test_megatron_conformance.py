"""The standard tests of training backends."""

from vime_core.testing import TrainBackendSuite


class TestConformance(TrainBackendSuite):
    entry = "megatron"
