"""The standard tests; without a device, those of masks, names and reasons."""

from vime_core.testing import AcceleratorSuite, SyncStrategySuite


class TestConformance(AcceleratorSuite):
    entry = "rocm"


class TestIpc(SyncStrategySuite):
    entry = "rocm_ipc"
