"""Every mistake is one line that names the thing and the remedy."""

import re

import pytest

from vime_core.config.compose import compose
from vime_core.errors import ConfigError, PluginError, UserError
from vime_core.testing.components import OVERRIDES


@pytest.mark.parametrize(
    ("override", "message"),
    [
        # unknown keys
        ("train.stps=3", "unknown key train.stps; did you mean train.steps?"),
        ("+train.stps=3", "unknown key train.stps; did you mean train.steps?"),
        ("++train.stps=3", "unknown key train.stps; did you mean train.steps?"),
        (
            "+algorithm.typo=1",
            "unknown key algorithm.typo; the closest is algorithm.name; 'vime config' prints all keys",
        ),
        ("lr=1e-6", "unknown key lr; did you mean train.lr?"),
        ("nothing_like_it=1", "unknown key nothing_like_it; the closest is "),
        ("trian.steps=1", "unknown key trian; did you mean train?"),
        ("rewards.acme.weigth=2", "unknown key rewards.acme.weigth; did you mean rewards.acme.weight?"),
        ("evals.a.pth=x", "unknown key evals.a.pth; did you mean evals.a.path?"),
        ("sync.segmnt=x", "unknown key sync.segmnt; did you mean sync.segment?"),
        # wrong types
        ("train.steps=abc", "train.steps=abc: must be a whole number"),
        ("train.steps=1.5", "train.steps=1.5: must be a whole number"),
        ("train.steps=true", "train.steps=True: must be a whole number"),
        ("train.steps=null", "train.steps=null: must be a whole number"),
        ("train.lr=fast", "train.lr=fast: must be a number"),
        ("train.layers=[1,x]", "train.layers=[1, 'x']: must be a list, each a whole number"),
        ("run.save_rollouts=maybe", "run.save_rollouts=maybe: must be true or false"),
        ("run.name=null", "run.name=null: must be text"),
        ("rollout.threads=x", "rollout.threads=x: must be a whole number or null"),
        ("train.steps.x=1", "train.steps={'x': 1}: must be a whole number"),
        ("rewards=5", "rewards=5: must be a section with keys below it"),
        ("rewards.acme=5", "rewards.acme=5: must be a section with keys below it"),
        ("evals.a=x", "evals.a=x: must be a section with keys below it"),
        ("plugins.block=acme", "plugins.block=acme: must be a list, each text"),
        ("train.lr=${nosuch}", "train.lr: Interpolation key 'nosuch' not found"),
        ("train.lr=${run.name}", "train.lr: While dereferencing interpolation '${run.name}'"),
        # limits
        ("train.dtype=float16", "train.dtype=float16: must be one of float32, bfloat16; did you mean bfloat16?"),
        ("algorithm.kind=mode", "algorithm.kind=mode: must be one of mean, sum"),
        ("placement=disjont", "placement=disjont: must be one of colocated, disjoint; did you mean disjoint?"),
        (
            "placement=disjoint cluster.train_resource=a",
            "cluster.train_resource=a names nodes of a cluster: add cluster.",
        ),
        (
            "cluster.address=h:1 cluster.rollout_resource=a",
            "cluster.rollout_resource=a places trainer and engines apart",
        ),
        ("train.steps=-1", "train.steps=-1: must be at least 0"),
        ("rollout.temperature=0", "rollout.temperature=0.0: must be more than 0"),
        ("rollout.top_p=1.5", "rollout.top_p=1.5: must be more than 0 and at most 1"),
        ("train.adam_beta2=1", "train.adam_beta2=1.0: must be at least 0 and less than 1"),
        ("train.lr=nan", "train.lr=nan: must be finite"),
        ("train.lr=inf", "train.lr=inf: must be finite"),
        ("rewards.acme.weight=nan", "rewards.acme.weight=nan: must be finite"),
        ("rewards.acme.weight=-inf", "rewards.acme.weight=-inf: must be finite"),
        ("deadlines.start=inf", "deadlines.start=inf: must be finite"),
        ("rollout.memory_gib=0", "rollout.memory_gib=0.0: must be more than 0"),
        ("filter=[acme] filters.acme.every=0", "filters.acme.every=0: must be at least 1"),
        # selections
        ("algorithm=acne", "unknown algorithm 'acne'; there are acme; did you mean acme?"),
        ("reward=[acme,nosuch]", "unknown reward 'nosuch'; there are acme"),
        ("train=3", "train=3: train takes one name, as in train=<name>"),
        ("algorithm=[acme,acme]", "algorithm takes one name"),
        ("algorithm=null", "algorithm takes one name"),
        ("data=auto", "unknown prompt source 'auto'; there are files"),
        ("reward=null", "reward=null: reward takes names, as in reward=[a,b]; reward=[] for none"),
        ("experiment=3", "experiment=3: experiment takes names, as in experiment=[a,b]; experiment=null for none"),
        ("+algorithm=acme", "+algorithm=acme: write algorithm=<name>, without +"),
        ("++algorithm=acme", "++algorithm=acme: write algorithm=<name>, without ++"),
        ("~algorithm", "~algorithm: write algorithm=<name>, without ~"),
        ("algorithm.name=other", "unknown algorithm 'other'; there are acme"),
        ("data.name=files data=files sync.name=acme sync=auto", "sync.name=acme: a component is chosen with sync=acme"),
        (
            "filters.acme.every=2",
            "filters.acme is set, but filter 'acme' is not chosen; choose it with filter=[..., acme]",
        ),
        ("filters.nosuch.every=2", "unknown filter 'nosuch'; there are acme"),
        ("filter=[acme,acme]", "filter=[acme,acme]: acme is given twice; give each name once"),
        ("experiment=mine.yaml", "experiment=mine.yaml: a name is without .yaml: write mine"),
        ("hardware=cpu.yaml", "hardware=cpu.yaml: a name is without .yaml: write cpu"),
        ("hardware=cpuu", "unknown hardware 'cpuu'; there are cpu"),
        # overrides that cannot be read
        ("'a b'", "cannot read override 'a b': write key=value"),
        ("data.train=/a=b", "cannot read override 'data.train=/a=b': write key=value, and quote a value that holds"),
        ("=3", "cannot read override '=3': write key=value"),
        ("a/b=3", "cannot read override 'a/b=3': write key=value"),
        ("train.steps=1,2", "train.steps=1,2 lists several values: add --multirun"),
        ("hydra.run.dir=x", "hydra.run.dir=x has no effect here: run folders are set with run.root and run.name"),
        ("hydra.searchpath=[/nosuch]", "path=/nosuch is not available"),
        # combinations
        ("rollout.prompts_per_step=10 algorithm.updates_per_rollout=4", "set rollout.prompts_per_step=8 or 12"),
        ("rollout.prompts_per_step=3 algorithm.updates_per_rollout=4", "set rollout.prompts_per_step=4"),
        ("eval.every=5", "eval.every=5, but there is no held-out set; add one with evals.<name>.path=<file>"),
        ("reward=[]", "no reward is chosen; choose one with reward=[<name>]"),
        ("resume.mode=must", "resume.mode=must needs the run folder to continue: add resume.run=<folder>"),
        ("train.lr_min=1e-7", "train.lr_min=1e-07 is not used by train.lr_schedule=constant"),
        ("plugins.block=[core]", "'core' holds vime's own components and cannot be blocked"),
    ],
)
def test_one_line_names_the_thing_and_the_remedy(acme, override, message):
    overrides = [override.strip("'")] if override.startswith("'") else override.split(" ")
    with pytest.raises(UserError) as caught:
        acme(*overrides)
    assert message in str(caught.value).replace(" (command line)", "")
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("train: {stps: 3}", "unknown key train.stps (experiment/bad.yaml); did you mean train.steps?"),
        ("train: {steps: abc}", "train.steps=abc (experiment/bad.yaml): must be a whole number"),
        ("nosuch: 3", "unknown key nosuch (experiment/bad.yaml)"),
        ("train: 5", "train=5 (experiment/bad.yaml): must be a section with keys below it"),
        ("train:", "train (experiment/bad.yaml) is empty: put keys below it, or leave it out"),
        ("run:", "run (experiment/bad.yaml) is empty: put keys below it, or leave it out"),
        ("run: 5", "run=5 (experiment/bad.yaml): must be a section with keys below it"),
        ("train:\n  steps: [", "experiment/bad.yaml line 3 is not valid YAML"),
        ("- a", "experiment/bad.yaml must hold keys and values, not list"),
        ("defaults:\n  - override /filter: [nosuch]", "unknown filter 'nosuch'; there are acme"),
        ("defaults:\n  - nosuch", "unknown experiment 'nosuch'"),
        ("defaults:\n  - quickstrt", "'quickstrt' (experiment/bad.yaml); there are bad, quickstart,"),
        ("defaults:\n  - quickstrt", "; did you mean quickstart?"),
        ("defaults:\n  - quickstart.yaml", "experiment/bad.yaml: defaults: a name is without .yaml: write quickstart"),
        (
            "defaults:\n  - override /rewrd: [acme]",
            "experiment/bad.yaml: 'override /rewrd' names no group of components; did you mean /reward?",
        ),
        ("defaults:\n  - override /zz: a", "'override /zz' names no group of components; there are model, data"),
        ("defaults:\n  - override hardware: cpu", "experiment/bad.yaml: write 'override /hardware', with /, for 'over"),
        ("defaults:\n  - override /filter: [acme, acme]", "experiment/bad.yaml: override /filter: acme is given twice"),
        ("algorithm: {name: other}", "unknown algorithm 'other'; there are acme"),
        ("rewards: {other: {weight: 2}}", "unknown reward 'other'; there are acme"),
        ("filters: {acme: {every: 2}}", "filters.acme (experiment/bad.yaml) is set, but filter 'acme' is not chosen"),
    ],
)
def test_a_mistake_in_a_file_names_the_file(acme, experiment, text, message):
    experiment("bad", text)
    with pytest.raises(UserError) as caught:
        acme("experiment=bad")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("header", ["", "# mine\n# @package _global_\n", "# @pakage _global_\n", "# @package train\n"])
@pytest.mark.parametrize("chosen", ["bad", "outer"])
def test_an_experiment_without_its_first_line_is_told(acme, experiment, tmp_path, header, chosen):
    experiment("outer", "defaults:\n  - bad\n")
    file = tmp_path / "conf" / "experiment" / "bad.yaml"
    file.write_text(f"{header}defaults:\n  - override /hardware: cpu\n")
    with pytest.raises(ConfigError) as caught:
        acme(f"experiment={chosen}")
    assert str(caught.value) == f"{file}: its first line must be '# @package _global_', with nothing above it"


def test_a_main_file_of_ones_own_is_not_passed_over(acme, tmp_path):
    (tmp_path / "conf" / "config.yaml").write_text("run: {name: mine}\n")
    with pytest.raises(ConfigError, match=r"conf/config\.yaml is not read: give it with --config, or rename it"):
        acme()


def test_what_is_required_is_named_with_how_to_set_it(acme):
    with pytest.raises(ConfigError) as caught:
        acme().check_complete()
    assert str(caught.value) == (
        "required but not set: data.train, model.path; add data.train=<value> model.path=<value> to the command line"
    )
    with pytest.raises(ConfigError, match=r"required but not set: model\.path"):
        _ = acme("data.train=x").config


def test_a_strategy_that_does_not_fit_is_told_with_what_it_needs(site, acme):
    source = (site.folder / "acme" / "hooks.py").read_text().replace('frozenset({"acme"})', 'frozenset({"other"})')
    (site.folder / "acme" / "hooks.py").write_text(source)
    with pytest.raises(PluginError) as caught:
        acme("sync=acme")
    assert "sync=acme does not work with training backend acme, only with other; sync=auto" in str(caught.value)
    with pytest.raises(PluginError, match="no sync strategy fits: acme: does not work with training backend acme"):
        acme("sync=auto")


def test_an_unavailable_component_stops_a_run_but_not_the_printing_of_its_configuration(acme):
    overrides = [*OVERRIDES, "accelerator=cuda"]
    with pytest.raises(PluginError, match=r"accelerator 'cuda' of plugin core \(vime-core .*\) is unavailable: "):
        compose(overrides)
    with pytest.raises(PluginError, match=r"sync=acme does not work with accelerator cuda"):
        compose(overrides, require_available=False)


@pytest.mark.parametrize("how", ["command line", "experiment", "saved"])
def test_blocking_in_the_configuration_comes_before_the_import(site, acme, experiment, tmp_path, how):
    site.install("broken", {"broken": "broken.hooks"}, {"broken/hooks.py": "raise AssertionError('imported')"})
    experiment("blocking", "plugins: {block: [broken]}\n")
    if how == "saved":
        (tmp_path / "saved.yaml").write_text(_saved(acme("experiment=blocking").tree))
        composed = compose(config_file=tmp_path / "saved.yaml")
    else:
        composed = acme("plugins.block=[broken]" if how == "command line" else "experiment=blocking")
    assert [plugin.name for plugin in composed.plugins.blocked if plugin.name == "broken"] == ["broken"]
    assert not composed.plugins.failed


def test_blocking_that_would_come_too_late_is_an_error(acme, experiment):
    experiment("inner", "plugins: {block: [broken]}\n")
    experiment("outer", "defaults:\n  - inner\n")
    with pytest.raises(
        ConfigError, match=r"plugins\.block=\[broken\] \(experiment/inner\.yaml\) comes after plugins are"
    ):
        acme("experiment=outer")


def test_a_broken_plugin_stops_a_run_only_when_strict(site, acme):
    site.install("broken", {"broken": "broken.hooks"}, {"broken/hooks.py": "1/0"})
    assert acme().plugins.warnings() == ["plugin broken (broken 1.0) failed: ZeroDivisionError: division by zero"]
    with pytest.raises(PluginError, match=r"plugin broken \(broken 1\.0\) failed: .* \(plugins\.strict=true\)"):
        acme("plugins.strict=true")


def test_settings_that_a_component_refuses_are_one_line(site, acme):
    hooks = site.folder / "acme" / "hooks.py"
    field = "    strictness: int = 3\n"
    check = "\n    def __post_init__(self):\n        raise ValueError('strictness must be even\\nor odd')\n"
    hooks.write_text(hooks.read_text().replace(field, field + check))
    with pytest.raises(ConfigError, match=r"^strictness must be even$"):
        _ = acme("model.path=/m", "data.train=/d").config


def test_settings_that_cannot_be_configured_are_the_plugins_fault(site, acme):
    hooks = site.folder / "acme" / "hooks.py"
    hooks.write_text(hooks.read_text().replace("strictness: int = 3", "strictness: complex = 3j"))
    with pytest.raises(PluginError) as caught:
        acme()
    assert re.search(
        r"plugin acme \(acme 1\.0\) failed: reward entry 'acme': its config RewardSettings", str(caught.value)
    )


def test_files_that_are_not_there_are_named(tmp_path):
    with pytest.raises(ConfigError, match=r"config\.yaml does not exist; give the config\.yaml of a run folder"):
        compose(config_file=tmp_path / "config.yaml")
    (tmp_path / "config.txt").touch()
    with pytest.raises(ConfigError, match=r"config\.txt is no YAML file"):
        compose(config_file=tmp_path / "config.txt")
    with pytest.raises(ConfigError, match=r"nosuch is no folder"):
        compose(config_folder=tmp_path / "nosuch")


def _saved(tree):
    from vime_core.config.render import render

    return render(tree)
