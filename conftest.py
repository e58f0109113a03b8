"""Fixtures shared by the tests of the core and of all plugins."""

import os
import signal

import pytest

from vime_core.cluster.keeper import Keeper
from vime_core.cluster.runtime import CLOSED_ENVIRONMENT, RayRuntime

SHELL_ENVIRONMENT = dict(os.environ)
"""Before this session sets anything."""


def pytest_configure():
    """What must hold before any test module is imported."""
    # Ray reads these once, when it is imported, which test modules may do before the fixture below.
    os.environ.update(CLOSED_ENVIRONMENT)
    # A shell starts background jobs with SIGINT ignored, and children inherit that; tests interrupt processes.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def shell_environment():
    """What a user's shell has: nothing of the Ray that this session runs, of its token or its loopback addresses."""
    return SHELL_ENVIRONMENT


@pytest.fixture(scope="session")
def keeper(tmp_path_factory):
    """A keeper of the test session: ends what a killed test run leaves behind."""
    keeper = Keeper.start("pytest", tmp_path_factory.mktemp("keeper"))
    yield keeper
    keeper.close(10)


@pytest.fixture(scope="session")
def process_group():
    """torch's default group, of this process alone; there can be but one."""
    from torch import distributed

    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.fixture(scope="session")
def ray_runtime(keeper):
    """One local Ray for the whole session, as a run starts it."""
    with RayRuntime(resources={"CPU": 8, "GPU": 0}, object_store_bytes=100 << 20, keeper=keeper.address) as runtime:
        yield runtime
