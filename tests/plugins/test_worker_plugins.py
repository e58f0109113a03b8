"""The row of the error table about workers: one that sees other plugins than the driver never begins to work."""

import sys
from dataclasses import fields

import pytest

from vime_core.cluster.trainers import TrainerGroup, TrainerSpec, TrainWorker
from vime_core.config.schema import DeadlineConfig
from vime_core.errors import PluginError, UserError
from vime_core.plugins.manager import load_plugins


def spec(versions, block=()):
    """What a rank is built from; only what it looks at before the comparison."""
    values = dict.fromkeys((field.name for field in fields(TrainerSpec)), None)
    return TrainerSpec(
        **{**values, "plugin_versions": versions, "blocked_plugins": tuple(block), "deadlines": DeadlineConfig()}
    )


def installed(site, version="1.0"):
    site.install("acme-reward", {"acme": "acme.hooks"}, {"acme/hooks.py": ""}, version=version)


def test_the_same_plugins_are_fine(site):
    installed(site)
    TrainWorker(spec(load_plugins().versions()), 0).check_plugins()
    TrainWorker(spec(load_plugins(["acme"]).versions(), block=["acme"]), 0).check_plugins()


@pytest.mark.parametrize(
    ("driver", "told"),
    [
        ({"acme": ("acme-reward", "2.0")}, r"acme: driver \('acme-reward', '2\.0'\), rank \('acme-reward', '1\.0'\)"),
        ({"acme": ("acme-fork", "1.0")}, r"acme: driver \('acme-fork', '1\.0'\), rank \('acme-reward', '1\.0'\)"),
        ({"acme": None}, r"acme: driver None, rank \('acme-reward', '1\.0'\)"),
        ({"beta": ("beta", "3.1")}, r"beta: driver \('beta', '3\.1'\), rank None"),
    ],
)
def test_a_difference_is_told(site, driver, told):
    installed(site)
    versions = {name: value for name, value in (load_plugins().versions() | driver).items() if value is not None}
    with pytest.raises(PluginError, match=f"^trainer rank 3 sees other plugins than the driver: {told}$"):
        TrainWorker(spec(versions), 3).check_plugins()


def test_a_plugin_that_fails_in_the_rank_only_is_a_difference(site):
    installed(site)
    versions = load_plugins().versions()
    (site.folder / "acme" / "hooks.py").write_text("raise OSError('no such disk')\n")
    for name in ("acme.hooks", "acme"):
        sys.modules.pop(name)
    with pytest.raises(PluginError, match=r"acme: driver \('acme-reward', '1\.0'\), rank None"):
        TrainWorker(spec(versions), 0).check_plugins()


@pytest.mark.ranks
def test_a_real_rank_ends_the_run_with_the_users_exit_status(ray_runtime):
    """The driver is told the rank's own error, of the class that exits with 2, not one of Ray's."""
    versions = {**load_plugins().versions(), "acme": ("acme-reward", "2.0")}
    group = TrainerGroup(spec(versions), [{"num_cpus": 0}])
    try:
        with pytest.raises(
            PluginError, match="trainer rank 0 sees other plugins than the driver: acme: driver"
        ) as caught:
            group.start()
    finally:
        group.close()
    assert caught.value.exit_code == UserError.exit_code == 2
