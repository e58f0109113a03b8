"""Rows of the error table of the plugin layer, each on a distribution with real metadata."""

import traceback

import pytest

from vime_core import __version__
from vime_core.errors import PluginError, UserError
from vime_core.plugins.auto import choose_accelerator, choose_sync
from vime_core.plugins.blame import blame
from vime_core.plugins.discovery import PluginInfo
from vime_core.plugins.listing import list_components
from vime_core.plugins.manager import Plugins, load_plugins
from vime_core.testing.distributions import FakeSite

GOOD = """
    from dataclasses import dataclass
    from vime_core import hookimpl
    from vime_core.config.schema import RewardConfig
    from vime_core.plugins.entries import RewardEntry

    @dataclass(kw_only=True)
    class AcmeConfig(RewardConfig):
        strictness: int = 3

    @hookimpl
    def vime_rewards():
        return [RewardEntry(name="acme", summary="exact match", config=AcmeConfig, factory="acme.reward:Acme")]
"""

HOOK = """
    from vime_core import hookimpl
    from vime_core.config.schema import AcceleratorConfig, AlgorithmConfig, RewardConfig, SyncConfig
    from vime_core.plugins.entries import AcceleratorEntry, AlgorithmEntry, RewardEntry, SyncStrategyEntry

"""


def install_acme(site: FakeSite, source: str, distribution: str = "acme-reward", version: str = "1.0") -> None:
    site.install(distribution, {"acme": "acme.hooks"}, {"acme/hooks.py": source}, version=version)


def only_failure(plugins: Plugins) -> str:
    [failure] = [failure for failure in plugins.failed if failure.plugin.distribution.startswith("acme")]
    return str(failure)


def test_core_is_a_plugin_like_any_other():
    plugins = load_plugins()
    assert plugins.find("accelerator", "cpu").plugin.distribution == "vime-core"
    assert plugins.versions()["core"] == ("vime-core", __version__)
    assert plugins.select("accelerator", "cpu").load().__name__ == "CpuAccelerator"


def test_an_entry_of_a_distribution_is_selected_by_name_and_by_either_name_of_its_kind(site):
    install_acme(site, GOOD)
    plugins = load_plugins()
    assert plugins.select("reward", "acme").config.__name__ == "AcmeConfig"
    assert plugins.versions()["acme"] == ("acme-reward", "1.0")
    assert plugins.entries("sync strategy") == plugins.entries("sync")
    with pytest.raises(PluginError, match=r"no kind of component 'rewardz'; there are algorithm, model"):
        plugins.entries("rewardz")


def test_loading_twice_gives_the_same_plugins(site):
    install_acme(site, GOOD)
    first, second = load_plugins(), load_plugins()
    assert first.versions() == second.versions()
    assert [r.entry for r in first.registered] == [r.entry for r in second.registered]


def test_an_import_failure_spares_the_other_plugins_and_is_named_once(site):
    install_acme(site, "import nosuchmodule")
    site.install("beta", {"beta": "beta.hooks"}, {"beta/hooks.py": GOOD.replace("acme", "beta")})
    plugins = load_plugins()
    line = "plugin acme (acme-reward 1.0) failed: ModuleNotFoundError: No module named 'nosuchmodule'"
    assert [warning for warning in plugins.warnings() if "acme" in warning] == [line]
    assert plugins.select("reward", "beta").name == "beta"


def test_what_a_plugin_prints_leaves_stdout_alone(site, capsys):
    install_acme(site, "    print('imported')\n" + GOOD.replace("return", "print('called')\n        return"))
    assert load_plugins().find("reward", "acme").plugin.name == "acme"
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "imported\ncalled\n")


def test_settings_that_are_no_dataclass_are_refused(site):
    install_acme(site, GOOD.replace("    @dataclass(kw_only=True)\n", ""))
    assert only_failure(load_plugins()).endswith(
        "reward entry 'acme': its config AcmeConfig is no dataclass, so its settings would be lost; put @dataclass "
        "above the class"
    )


def test_a_module_that_exits_when_imported_is_a_failure(site):
    install_acme(site, "raise SystemExit('no licence')")
    assert only_failure(load_plugins()).endswith("SystemExit: no licence")


def test_selecting_from_a_plugin_that_failed_tells_the_failure_and_keeps_its_traceback(site):
    install_acme(site, "import nosuchmodule")
    with pytest.raises(PluginError) as caught:
        load_plugins().select("reward", "acme")
    assert str(caught.value) == (
        "reward 'acme': plugin acme (acme-reward 1.0) failed: ModuleNotFoundError: No module named 'nosuchmodule'; "
        "--traceback shows where"
    )
    assert "acme/hooks.py" in "".join(traceback.format_exception(caught.value))


def test_an_unknown_name_tells_the_names_the_closest_and_the_plugins_that_failed(site):
    install_acme(site, GOOD)
    site.install("broken", {"broken": "broken.hooks"}, {"broken/hooks.py": "1/0"})
    with pytest.raises(PluginError) as caught:
        load_plugins().select("reward", "acmee")
    message = str(caught.value)
    assert message.startswith("unknown reward 'acmee'; there are acme")
    assert "did you mean acme?" in message
    assert "plugin broken (broken 1.0) failed: ZeroDivisionError: division by zero" in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("@hookimpl\ndef vime_rewards(registry): return []", "unknown argument 'registry'; expected vime_rewards()"),
        ("@hookimpl\ndef vime_rewards(limit=3): return []", "argument 'limit' must not have a default"),
        ("@hookimpl\ndef vime_rewards(*names): return []", "unknown argument 'names'"),
        ("@hookimpl\ndef vime_reward(): return []", "there is no hook vime_reward; did you mean vime_rewards()?"),
        ("@hookimpl\ndef on_start(): return []", "there is no hook on_start; there are vime_accelerators, "),
        ("def vime_rewards(): return []", "function vime_rewards is not marked with @hookimpl"),
        ("def vime_rewrads(): return []", "vime_rewrads is not marked with @hookimpl; did you mean vime_rewards()?"),
        ("@hookimpl(wrapper=True)\ndef vime_rewards(): return (yield)", "must be a plain function, not a wrapper"),
        ("@hookimpl\ndef vime_rewards(): return None", "vime_rewards must return a list of RewardEntry, not None"),
        ("@hookimpl\ndef vime_rewards(): return ['acme']", "must return RewardEntry objects, not 'acme'"),
        (
            "@hookimpl\ndef vime_rewards():\n"
            "    yield AlgorithmEntry(name='a', summary='', config=AlgorithmConfig, factory='a:B')",
            "hook vime_rewards must return RewardEntry objects, not AlgorithmEntry(",
        ),
        (
            "@hookimpl\ndef vime_rewards():\n"
            "    yield RewardEntry(name='a', summary='', config=AlgorithmConfig, factory='a:B')",
            "config AlgorithmConfig must derive from vime_core.config.schema.RewardConfig",
        ),
        (
            "@hookimpl\ndef vime_rewards():\n"
            "    return [RewardEntry(name='a', summary='', config=RewardConfig, factory='a:B')] * 2",
            "reward 'a' is returned 2 times",
        ),
        (
            "@hookimpl\ndef vime_sync_strategies():\n"
            "    yield SyncStrategyEntry(name='auto', summary='', config=SyncConfig, factory='a:B')",
            "entry name 'auto' is reserved",
        ),
        (
            "@hookimpl\ndef vime_rewards():\n"
            "    yield RewardEntry(name='A b', summary='', config=RewardConfig, factory='a:B')",
            "reward entry name 'A b' must be lower case letters",
        ),
        ("@hookimpl\ndef vime_rewards(): raise RuntimeError('boom')", "RuntimeError: boom, in hook vime_rewards"),
    ],
)
def test_a_malformed_plugin_fails_with_the_hook_and_what_was_expected(site, body, expected):
    install_acme(site, "\n".join([*map(str.strip, HOOK.splitlines()), body]))
    plugins = load_plugins()
    assert only_failure(plugins).startswith("plugin acme (acme-reward 1.0) failed: ")
    assert expected in only_failure(plugins)
    assert not [r for r in plugins.registered if r.plugin.name == "acme"]
    assert plugins.find("accelerator", "cpu")


def test_a_plugin_can_be_an_object_and_its_properties_are_left_alone(site):
    body = """
    class Plugin:
        @hookimpl
        def vime_rewards(self):
            return [RewardEntry(name="acme", summary="", config=RewardConfig, factory="a:B")]

        @property
        def vime_secret(self):
            raise AssertionError("evaluated")

    plugin = Plugin()
    """
    site.install("acme-reward", {"acme": "acme.hooks:plugin"}, {"acme/hooks.py": HOOK + body})
    assert load_plugins().select("reward", "acme").name == "acme"


def test_an_optional_hook_of_another_version_is_no_failure(site):
    install_acme(
        site, GOOD + "\n    @hookimpl(optionalhook=True)\n    def vime_from_the_future():\n        return []\n"
    )
    assert load_plugins().select("reward", "acme")


def test_the_exception_of_a_hook_carries_a_note_with_plugin_version_and_hook(site):
    install_acme(site, "from vime_core import hookimpl\n@hookimpl\ndef vime_rewards():\n    raise RuntimeError('boom')")
    [failure] = load_plugins().failed
    assert isinstance(failure.error, RuntimeError)
    assert failure.error.__notes__ == ["raised by plugin acme (acme-reward 1.0), in hook vime_rewards"]


def test_the_exception_of_a_factory_carries_a_note(site):
    install_acme(site, GOOD)
    (site.folder / "acme" / "reward.py").write_text(
        "class Acme:\n    def __init__(self, config): raise KeyError('x')\n"
    )
    with pytest.raises(KeyError) as caught:
        load_plugins().find("reward", "acme").build(None)
    assert caught.value.__notes__ == ["raised by plugin acme (acme-reward 1.0), in reward 'acme'"]


@pytest.mark.parametrize(
    ("plugin", "error", "noted"), [("core", UserError, 0), ("core", KeyError, 1), ("acme", UserError, 1)]
)
def test_the_users_mistakes_are_not_blamed_on_core(plugin, error, noted):
    with pytest.raises(error) as caught, blame(PluginInfo(plugin, "dist", "1.0"), "a hook"):
        raise error("x")
    assert len(getattr(caught.value, "__notes__", [])) == noted


def test_a_factory_that_does_not_exist_names_the_plugin(site):
    install_acme(site, GOOD)
    with pytest.raises(
        PluginError, match=r"reward 'acme' of plugin acme \(acme-reward 1.0\): cannot import acme\.reward:"
    ):
        load_plugins().find("reward", "acme").build(None)


def test_one_entry_name_from_two_plugins_is_an_error_only_when_selected(site):
    install_acme(site, GOOD)
    site.install(
        "beta", {"beta": "beta.hooks"}, {"beta/hooks.py": GOOD.replace("acme.reward", "beta.reward")}, version="2.1"
    )
    plugins = load_plugins()
    line = (
        "reward 'acme' is provided by acme (acme-reward 1.0) and beta (beta 2.1); "
        "uninstall one, or block one with plugins.block=[beta] or VIME_PLUGINS_BLOCK=beta"
    )
    assert plugins.warnings() == [line]
    assert plugins.select("accelerator", "cpu")
    with pytest.raises(PluginError) as caught:
        plugins.select("reward", "acme")
    assert str(caught.value) == line
    assert load_plugins(["beta"]).select("reward", "acme").factory == "acme.reward:Acme"


def test_one_plugin_name_of_two_distributions_is_an_error_only_when_selected(site):
    install_acme(site, GOOD)
    site.install("acme-fork", {"acme": "fork.hooks"}, {"fork/hooks.py": GOOD.replace("acme", "fork")}, version="2.0")
    plugins = load_plugins()
    assert len(plugins.warnings()) == 2
    for name in ("acme", "fork"):
        with pytest.raises(PluginError) as caught:
            plugins.select("reward", name)
        assert str(caught.value) == (
            f"reward '{name}': plugin 'acme' is declared by acme (acme-fork 2.0) and acme (acme-reward 1.0); uninstall "
            "one, or block one with plugins.block=[acme-reward] or VIME_PLUGINS_BLOCK=acme-reward"
        )
    assert load_plugins(["acme-reward"]).select("reward", "fork")


def test_two_distributions_may_even_declare_the_same_module(site):
    install_acme(site, GOOD)
    site.install("acme-fork", {"acme": "acme.hooks"}, {})
    with pytest.raises(PluginError, match=r"declared by acme \(acme-fork 1\.0\) and acme \(acme-reward 1\.0\)"):
        load_plugins().select("reward", "acme")


def test_core_cannot_be_shadowed_or_blocked(site):
    source = HOOK + (
        "    @hookimpl\n    def vime_accelerators():\n"
        "        yield AcceleratorEntry(name='cpu', summary='', config=AcceleratorConfig, factory='a:B')\n"
    )
    site.install("acme-core", {"core": "acme.hooks"}, {"acme/hooks.py": source})
    plugins = load_plugins()
    assert "the plugin name 'core' is reserved" in only_failure(plugins)
    assert plugins.select("accelerator", "cpu").factory == "vime_core.accelerators.cpu:CpuAccelerator"
    assert load_plugins(["vime-core"]).select("accelerator", "cpu")
    with pytest.raises(PluginError, match="'core' holds vime's own components and cannot be blocked"):
        load_plugins(["core"])


@pytest.mark.parametrize("name", ["acme", "acme-reward"])
@pytest.mark.parametrize("by_environment", [True, False])
def test_blocking_comes_before_the_import(site, monkeypatch, name, by_environment):
    install_acme(site, "raise AssertionError('imported')")
    if by_environment:
        monkeypatch.setenv("VIME_PLUGINS_BLOCK", f"other, {name}")
    plugins = load_plugins([] if by_environment else [name])
    assert not plugins.failed
    assert [str(plugin) for plugin in plugins.blocked] == ["acme (acme-reward 1.0)"]
    with pytest.raises(PluginError, match=r"unknown reward 'acme'.*blocked: acme \(acme-reward 1\.0\)"):
        plugins.select("reward", "acme")


def test_blocking_what_is_not_there_is_a_warning(site):
    install_acme(site, GOOD)
    plugins = load_plugins(["acmee"])
    assert plugins.warnings() == ["plugin 'acmee' is to be blocked, but none of that name is installed"]


def test_a_missing_module_and_a_probe_say_why_an_entry_is_unavailable(site):
    body = """
        def broken(): raise OSError("no permission")
        @hookimpl
        def vime_accelerators():
            common = dict(summary="", config=AcceleratorConfig, factory="a:B", priority=99)
            yield AcceleratorEntry(name="a", requires=("nosuchmodule",), **common)
            yield AcceleratorEntry(name="b", requires=("nosuchmodule.deeper",), **common)
            yield AcceleratorEntry(name="c", probe=lambda: "no HIP device", **common)
            yield AcceleratorEntry(name="d", probe=broken, **common)
    """
    install_acme(site, HOOK + body.replace("\n        ", "\n    "))
    plugins = load_plugins()
    for name, reason in {
        "a": "module nosuchmodule is not installed",
        "b": "module nosuchmodule.deeper is not installed",
        "c": "no HIP device",
        "d": "its probe failed: OSError: no permission",
    }.items():
        with pytest.raises(PluginError) as caught:
            plugins.select("accelerator", name)
        assert str(caught.value) == f"accelerator '{name}' of plugin acme (acme-reward 1.0) is unavailable: {reason}"
    assert choose_accelerator(plugins).entry.name not in "abcd"


def test_strict_stops_at_any_failure(site):
    install_acme(site, GOOD)
    load_plugins().check_strict()
    site.install("broken", {"broken": "broken.hooks"}, {"broken/hooks.py": "1/0"})
    with pytest.raises(PluginError, match=r"plugin broken \(broken 1\.0\) failed.*plugins\.strict=true"):
        load_plugins().check_strict()


def test_a_malformed_entry_point_is_named(site):
    site.install("acme-reward", {"acme": "acme hooks!"}, {})
    assert "entry point 'acme hooks!' must look like 'package.hooks'" in only_failure(load_plugins())


def test_auto_takes_the_fitting_strategy_with_the_highest_priority(site):
    body = """
    @hookimpl
    def vime_sync_strategies():
        common = dict(summary="", config=SyncConfig, factory="a:B", train_backends=frozenset({"acme_train"}))
        yield SyncStrategyEntry(name="slow", **common)
        yield SyncStrategyEntry(name="quick", priority=5, accelerators=frozenset({"cpu"}), **common)
        yield SyncStrategyEntry(name="apart", priority=9, placements=frozenset({"disjoint"}), **common)
        yield SyncStrategyEntry(name="absent", priority=9, requires=("nosuchmodule",), **common)
    """
    install_acme(site, HOOK + body)
    plugins = load_plugins()
    fit = {"train": "acme_train", "rollout": "any", "placement": "colocated"}
    assert choose_sync(plugins, accelerator="cpu", **fit).entry.name == "quick"
    assert choose_sync(plugins, accelerator="cuda", **fit).entry.name == "slow"
    with pytest.raises(PluginError) as caught:
        choose_sync(plugins, accelerator="cpu", train="other", rollout="any", placement="colocated")
    assert "slow: does not work with training backend other, only with acme_train" in str(caught.value)


def test_the_list_shows_every_state(site):
    install_acme(site, GOOD)
    site.install("beta", {"beta": "beta.hooks"}, {"beta/hooks.py": GOOD.replace("acme.reward", "beta.reward")})
    site.install("broken", {"broken": "broken.hooks"}, {"broken/hooks.py": "1/0"})
    site.install("hollow", {"hollow": "hollow.hooks"}, {"hollow/hooks.py": ""})
    site.install("gone", {"gone": "gone.hooks"}, {})
    rows = list_components(load_plugins(["gone"]))
    states = {(row.plugin, row.name): (row.status, row.detail) for row in rows}
    assert states["core", "cpu"] == ("available", "")
    assert states["acme", "acme"][0] == states["beta", "acme"][0] == "ambiguous"
    assert states["broken", ""] == ("failed", "ZeroDivisionError: division by zero")
    assert states["hollow", ""][0] == "empty"
    assert states["gone", ""][0] == "blocked"
