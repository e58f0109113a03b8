"""Accelerators: `Good`, and others that are wrong in one way. The docstring says how, and which test finds it."""

import os

from vime_core.accelerators.cpu import CpuAccelerator


class Good(CpuAccelerator):
    """The CPU under another name."""

    name = "good"


class WrongName(CpuAccelerator):
    """test_its_properties_are_those_that_ray_and_torch_know: called differently from its entry."""

    name = "cpu"


class NamedResource(CpuAccelerator):
    """test_its_properties_are_those_that_ray_and_torch_know: a resource that Ray does not count."""

    name = "named_resource"
    ray_resource = "TPU"


class SaysNo(CpuAccelerator):
    """test_being_unavailable_has_a_reason: unavailable, but its entry has no probe that says so."""

    name = "says_no"

    def available(self):
        return "no device"


class NoTorchDevice(CpuAccelerator):
    """test_devices_have_names_of_torch: a device string that torch does not know."""

    name = "no_torch_device"

    def device(self, local_rank):
        return f"acme:{local_rank}"


class ChangesThisProcess(CpuAccelerator):
    """test_a_child_sees_its_own_devices_and_threads: sets the variables of this process."""

    name = "changes_this_process"

    def child_environment(self, devices, threads):
        environment = super().child_environment(devices, threads)
        os.environ["ACME_VISIBLE_DEVICES"] = str(len(os.environ))
        return environment


class NoThreads(CpuAccelerator):
    """test_a_child_sees_its_own_devices_and_threads: children take all cores."""

    name = "no_threads"

    def child_environment(self, devices, threads):
        return {}


class NumbersForRay(CpuAccelerator):
    """test_a_child_sees_its_own_devices_and_threads: gives Ray's processes a number instead of text."""

    name = "numbers_for_ray"

    def ray_environment(self):
        return {"ACME_COUNT": 1}


class MemoryInGib(CpuAccelerator):
    """test_a_device_that_is_there_has_memory: (total, free) instead of (free, total)."""

    name = "memory_in_gib"

    def memory(self):
        free, total = super().memory()
        return total + 1, free


class NoMemory:
    """test_the_component_has_the_methods_of_its_kind: attributes and methods are missing."""

    name = "no_memory"

    def __init__(self, config):
        pass
