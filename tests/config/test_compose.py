"""What a right configuration becomes."""

import dataclasses
from pathlib import Path

import pytest
import yaml
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra

from vime_core.config.compose import compose, engines_only
from vime_core.config.location import conf_folder
from vime_core.config.render import render
from vime_core.config.schema import Config
from vime_core.config.slots import NAMED_SECTIONS, SEVERAL, SINGLE
from vime_core.errors import ConfigError, PluginError
from vime_core.plugins.kinds import ENTRY_TYPES

PATHS = ["model.path=/m", "data.train=/d.parquet"]


def test_every_kind_has_a_place_in_the_tree():
    fields = {field.name for field in dataclasses.fields(Config)}
    assert sorted([*SINGLE, *SEVERAL]) == sorted(entry_type.group for entry_type in ENTRY_TYPES)
    assert {*SINGLE, *NAMED_SECTIONS} <= fields


def test_each_component_is_of_its_own_class_with_its_own_defaults(acme):
    composed = acme(*PATHS, "algorithm.clip_ratio=0.3")
    config = composed.config
    assert isinstance(config, Config)
    assert type(config.algorithm).__name__ == "AlgorithmSettings"
    assert vars(config.algorithm) == {"name": "acme", "updates_per_rollout": 1, "clip_ratio": 0.3, "kind": "mean"}
    assert type(config.rewards["acme"]).__name__ == "RewardSettings"
    assert config.rewards["acme"].strictness == 3
    assert (config.data.name, config.rollout_function.name) == ("files", "single_turn")
    assert composed.components["rewards.acme"].entry.name == "acme"
    assert composed.missing == []


def test_several_components_of_a_kind_live_by_name(acme):
    config = acme(*PATHS, "filter=[acme]", "tracker=acme", "observer=[acme]", "filters.acme.every=2").config
    assert (config.filters["acme"].every, config.trackers["acme"].every, [*config.observers]) == (2, 1, ["acme"])
    assert acme(*PATHS).config.filters == {}


def test_held_out_sets_need_no_plus(acme):
    config = acme(*PATHS, "eval.every=5", "evals.gsm8k.path=/e.parquet", "evals.gsm8k.samples_per_prompt=4").config
    assert (config.evals["gsm8k"].path, config.evals["gsm8k"].samples_per_prompt) == ("/e.parquet", 4)


@pytest.mark.parametrize("plus", ["", "+", "++"])
def test_a_key_may_be_set_with_or_without_plus(acme, plus):
    assert acme(f"{plus}train.steps=7").typed.train.steps == 7


def test_auto_takes_the_defaults_of_what_it_chooses_and_keeps_what_the_user_sets(acme):
    composed = acme("sync=auto", "sync.probe=false", "sync.segment=mine")
    sync = composed.tree["sync"]
    assert sync == {"name": "acme", "bucket_mib": 64, "probe": False, "probe_tolerance": None, "segment": "mine"}
    assert composed.provenance["sync.name"] == "chosen automatically"
    assert composed.provenance["sync.bucket_mib"] == "default of sync strategy acme"
    assert composed.provenance["sync.probe"] == "command line"
    assert composed.tree["accelerator"]["name"] in ("cpu", "cuda")


def test_the_model_family_stays_auto_until_the_folder_is_read(acme):
    composed = acme(*PATHS)
    assert composed.config.model.name == "auto"
    assert "model" not in composed.components


def test_an_experiment_chooses_components_and_sets_keys(acme, experiment):
    experiment("mine", "defaults:\n  - override /filter: [acme]\ntrain:\n  steps: 3\n  lr: 2e-6\n")
    composed = acme("experiment=mine", "train.lr=3e-6")
    assert composed.typed.train.steps == 3
    assert composed.typed.train.lr == 3e-6
    assert [*composed.typed.filters] == ["acme"]
    assert composed.provenance["train.steps"] == "experiment/mine.yaml"
    assert composed.provenance["train.lr"] == "command line"
    assert composed.provenance["train.dtype"] == "default of training backend acme"
    assert composed.provenance["run.seed"] == "default"
    assert composed.provenance["algorithm.name"] == "command line"


def test_of_two_files_with_one_name_the_users_own_is_taken(acme, experiment, site, tmp_path):
    experiment("quickstart", "run: {name: mine}\n")
    experiment("acme_quick", "run: {seed: 5}\n")
    shipped = site.folder / "acme" / "conf" / "experiment"
    shipped.mkdir(parents=True)
    for name in ("quickstart", "acme_quick"):
        (shipped / f"{name}.yaml").write_text("# @package _global_\nrun: {name: shipped}\n")
    composed = acme("experiment=[quickstart,acme_quick]")
    assert (composed.typed.run.name, composed.typed.run.seed) == ("mine", 5)
    assert composed.provenance["run.name"] == "experiment/quickstart.yaml"
    assert composed.typed.evals == {}
    (tmp_path / "conf" / "experiment" / "acme_quick.yaml").unlink()
    assert acme("experiment=acme_quick").typed.run.name == "shipped"
    (shipped.parent / "hardware").mkdir()
    (shipped.parent / "hardware" / "cpu.yaml").write_text("# @package _global_\nrun: {name: shipped}\n")
    assert acme("hardware=cpu").typed.run.name == "run"


def test_experiments_can_be_combined_and_left_out(acme, experiment):
    experiment("one", "train: {steps: 1}\nrun: {name: one}\n")
    experiment("two", "train: {steps: 2}\n")
    typed = acme("experiment=[one,two]").typed
    assert (typed.train.steps, typed.run.name) == (2, "one")
    assert acme("experiment=null").typed.run.name == "run"


def test_a_file_of_a_component_group_extends_the_component(acme, tmp_path):
    (tmp_path / "conf" / "algorithm").mkdir()
    (tmp_path / "conf" / "algorithm" / "gentle.yaml").write_text("defaults: [acme]\nclip_ratio: 0.1\n")
    composed = acme("algorithm=gentle")
    assert (composed.typed.algorithm.name, composed.typed.algorithm.clip_ratio) == ("acme", 0.1)
    assert composed.provenance["algorithm.clip_ratio"] == "algorithm/gentle.yaml"


def test_interpolations_are_resolved(acme):
    typed = acme(
        "train.lr=1e-5", "train.lr_min=${train.lr}", "train.lr_schedule=linear", "run.name=lr_${train.lr}"
    ).typed
    assert (typed.train.lr_min, typed.run.name) == (1e-5, "lr_1e-05")


def test_text_that_looks_like_a_number_stays_text(acme):
    assert acme("run.name=007", "data.train='1e3'").tree["data"]["train"] == "1e3"


def test_every_value_has_a_provenance_and_what_is_missing_is_known(acme):
    composed = acme()
    assert composed.missing == ["data.train", "model.path"]

    def keys(tree, path=""):
        for name, value in tree.items():
            yield from keys(value, f"{path}{name}.") if isinstance(value, dict) and value else [f"{path}{name}"]

    assert set(keys(composed.tree)) == set(composed.provenance)


def test_a_saved_configuration_composes_to_itself_and_can_be_changed(acme, tmp_path):
    first = acme(
        *PATHS,
        "reward=[acme]",
        "evals.a.path=/e",
        "eval.every=5",
        "train.layers=[1,2]",
        "run.name='x: y'",
        "rollout.memory_gib=2",
    )
    saved = tmp_path / "saved" / "config.yaml"
    saved.parent.mkdir()
    saved.write_text(yaml.safe_dump(first.tree))
    again = compose(config_file=saved)
    assert again.tree == first.tree
    assert again.config == first.config
    changed = compose(["train.steps=9"], config_file=saved)
    assert changed.typed.train.steps == 9
    assert changed.provenance["train.lr"] == "config.yaml"


@pytest.fixture
def saved(acme, tmp_path):
    """Composes from a saved configuration with values of its own."""
    settings = ["algorithm.clip_ratio=0.3", "train.steps=7", "train.layers=[1]", "rollout.samples_per_prompt=3"]
    first = acme(*PATHS, *settings, "rollout.memory_gib=2", "sync.probe=false", "filter=[acme]", "filters.acme.every=5")
    file = tmp_path / "saved" / "config.yaml"
    file.parent.mkdir()
    file.write_text(yaml.safe_dump(first.tree))
    return lambda *overrides: compose(overrides, config_file=file)


def test_on_a_saved_configuration_another_component_has_its_defaults_under_what_its_kind_has_in_common(saved):
    composed = saved("rollout=replay", "rollout.path=/run", "filter=[]")
    tree = composed.tree
    assert tree["train"] == saved().tree["train"]
    assert tree["rollout"]["samples_per_prompt"] == 3
    assert tree["rollout"]["path"] == "/run"
    assert "memory_gib" not in tree["rollout"]
    assert tree["filters"] == {}
    assert tree["algorithm"]["clip_ratio"] == 0.3
    assert composed.provenance["rollout.name"] == "command line"
    assert composed.provenance["rollout.samples_per_prompt"] == "config.yaml"
    assert composed.provenance["rollout.path"] == "command line"


def test_on_a_saved_configuration_the_sync_strategy_follows_what_it_must_fit(saved):
    composed = saved("rollout=replay", "rollout.path=/run")
    assert composed.tree["sync"]["name"] == "none"
    assert composed.provenance["sync.name"] == "chosen automatically"
    assert composed.tree["sync"]["probe"] is False
    with pytest.raises(PluginError, match="sync=acme pushes into engines"):
        saved("rollout=replay", "rollout.path=/run", "sync=acme")


def test_on_a_saved_configuration_the_same_component_keeps_its_settings(saved):
    assert saved("algorithm=acme", "filter=[acme]").tree == saved().tree


def test_on_a_saved_configuration_files_and_several_components_can_be_chosen(saved):
    composed = saved("hardware=cpu", "tracker=[acme]", "train.steps=8")
    assert (composed.tree["train"]["dtype"], composed.tree["train"]["steps"]) == ("float32", 8)
    assert [*composed.tree["trackers"], *composed.tree["filters"]] == ["acme", "acme"]
    assert composed.tree["filters"]["acme"]["every"] == 5


def test_on_a_saved_configuration_an_unknown_component_is_told(saved):
    with pytest.raises(PluginError, match=r"unknown rollout backend 'reply'.*did you mean replay"):
        saved("rollout=reply")
    with pytest.raises(ConfigError, match="a component is chosen with train=none"):
        saved("train.name=none")


def test_a_saved_configuration_of_a_component_that_is_not_there(saved, tmp_path):
    file = tmp_path / "saved" / "config.yaml"
    file.write_text(file.read_text().replace("acme", "gone"))
    with pytest.raises(PluginError, match="gone"):
        saved()


def test_recorded_rollouts_need_no_data(acme):
    composed = acme("model.path=/m", "rollout=replay", "rollout.path=/run", "sync=auto")
    assert composed.missing == []
    assert composed.config.data.train == ""
    assert composed.provenance["data.train"] == "not read"


def test_the_engines_of_a_run_alone(acme):
    run = acme("model.path=/m", "train.layers=[1]", "train.world_size=4", "rollout.memory_gib=2", "train.lr=1e-3")
    with pytest.raises(PluginError, match="no sync strategy fits"):  # that of acme wants its own training backend
        engines_only(run)
    with pytest.raises(ConfigError, match="rollout=replay has no engines"):
        engines_only(acme("model.path=/m", "rollout=replay", "rollout.path=/run", "sync=auto"))


def test_the_engines_of_a_run_alone_with_the_components_of_the_repository():
    run = compose(["model.path=/m", "hardware=cpu", "train.lr=1e-3", "rollout.max_num_seqs=3"])
    composed = engines_only(run, ["rollout.num_engines=2"])
    assert composed.missing == []
    assert (composed.tree["train"]["name"], composed.tree["rollout"]["name"]) == ("none", "vllm")
    assert (composed.tree["rollout"]["max_num_seqs"], composed.tree["rollout"]["num_engines"]) == (3, 2)
    assert composed.tree["sync"]["name"] == "shm"


def test_composing_leaves_nothing_behind(acme):
    before = dict(ConfigStore.instance().repo)
    acme()
    assert ConfigStore.instance().repo == before
    assert not GlobalHydra.instance().is_initialized()


def test_what_is_printed_is_the_tree(acme):
    composed = acme(
        "run.name='a # b'", "train.layers=[1,2]", "eval.every=5", "evals.a.path='null'", "rollout.memory_gib=1e-3"
    )
    assert yaml.safe_load(render(composed.tree, composed.provenance)) == composed.tree
    assert yaml.safe_load(render(composed.tree)) == composed.tree
    text = render(composed.tree, composed.provenance)
    assert "  path: ???                                       # required: model.path=<value>\n" in text
    assert any(line.split("  # ") == ["  layers: [1, 2]".ljust(48), "command line"] for line in text.splitlines())


def test_the_files_are_found_beside_an_editable_installation():
    folder = conf_folder()
    assert (folder / "config.yaml").is_file()
    assert folder == Path(__file__).resolve().parents[2] / "conf"


SHIPPED = sorted(path.relative_to(conf_folder()) for path in conf_folder().glob("*/*.yaml"))


@pytest.mark.parametrize("file", SHIPPED, ids=str)
def test_every_shipped_file_composes(file):
    composed = compose([f"{file.parent}={file.stem}"], require_available=False)
    assert str(file) in {*composed.provenance.values()}


def test_the_defaults_compose_with_the_components_of_the_repository():
    tree = compose(require_available=False).tree
    assert {key: tree[key]["name"] for key in SINGLE if key not in ("accelerator", "sync")} == {
        "model": "auto",
        "data": "files",
        "algorithm": "grpo",
        "train": "megatron",
        "rollout": "vllm",
        "rollout_function": "single_turn",
    }
    assert [*tree["rewards"]] == ["dapo_math"]
