"""Conformance of accelerators."""

from __future__ import annotations

import os
from unittest import SkipTest

from vime_core.accelerators.threads import THREAD_VARIABLES
from vime_core.plugins.interfaces import Accelerator
from vime_core.testing.contract import require, require_equal
from vime_core.testing.suite import ComponentSuite, need


class AcceleratorSuite(ComponentSuite):
    """Tests of an accelerator; what needs a device is skipped where there is none."""

    group = "accelerator"
    interface = Accelerator
    runs_unavailable = True

    def test_its_properties_are_those_that_ray_and_torch_know(self) -> None:
        """Name, torch backend, Ray resource, sleep."""
        accelerator = self.make()
        require_equal(accelerator.name, self.entry, "the accelerator's name")
        require(accelerator.ray_resource in ("CPU", "GPU"), "ray_resource must be CPU or GPU")
        require(bool(accelerator.torch_backend.strip()), "torch_backend must name a backend of torch.distributed")
        require(isinstance(accelerator.can_sleep, bool), "can_sleep must be True or False")

    def test_being_unavailable_has_a_reason(self) -> None:
        """The component and its entry agree: `vime plugins list` asks the entry, a run the component."""
        reason = self.make().available()
        require(reason is None or bool(reason.strip()), f"available must return None or a reason, not {reason!r}")
        listed = self.component().unavailable()
        require((reason is None) == (listed is None), f"the entry says {listed!r}, the accelerator {reason!r}")

    def test_devices_have_names_of_torch(self) -> None:
        """`cpu` for every rank, or an ordinal each."""
        need("torch")
        import torch

        accelerator = self.make()
        for rank in range(3):
            require(isinstance(torch.device(accelerator.device(rank)), torch.device), "no torch device")
        numbered = accelerator.ray_resource == "GPU"
        different = accelerator.device(0) != accelerator.device(1)
        require(different == numbered, "ranks share the device of ray_resource CPU, and have one each of GPU")

    def test_a_child_sees_its_own_devices_and_threads(self) -> None:
        """By environment variables, which this process must not get."""
        accelerator, before = self.make(), dict(os.environ)
        one, other = accelerator.child_environment([0], 3), accelerator.child_environment([1], 3)
        require(os.environ == before, "child_environment changes this process's environment")
        for environment in (one, other):
            text = all(isinstance(item, str) for pair in environment.items() for item in pair)
            require(text, "child_environment must map text to text")
            for name in THREAD_VARIABLES:
                require_equal(environment.get(name), "3", f"{name} of a child with 3 threads")
        if accelerator.ray_resource == "GPU":
            require(one != other, "children with different devices get the same environment")
        shared = accelerator.ray_environment()
        text = all(isinstance(item, str) for pair in shared.items() for item in pair)
        require(text and os.environ == before, "ray_environment must map text to text and change no process")

    def test_a_device_that_is_there_has_memory(self) -> None:
        """Free and total bytes."""
        accelerator = self.make()
        if accelerator.available() is not None:
            raise SkipTest("no device here")
        count = accelerator.device_count()
        require(isinstance(count, int) and count >= 1, f"available, but device_count is {count!r}")
        free, total = accelerator.memory()
        require(0 <= free <= total and total > 0, f"memory must be (free, total) bytes, not {(free, total)}")
