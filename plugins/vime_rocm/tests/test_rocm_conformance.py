"""The standard tests of accelerators; without a device, those of masks, names and reasons."""

from vime_core.testing import AcceleratorSuite


class TestConformance(AcceleratorSuite):
    entry = "rocm"
