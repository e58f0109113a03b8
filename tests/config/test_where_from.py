"""Each kind of mistake, from each place that a value can come from: one line that names the place."""

import pytest
import yaml

from vime_core.cli import main
from vime_core.errors import ConfigError
from vime_core.testing.components import OVERRIDES

MISTAKES = {
    "unknown key": ("train.stps", "3", "unknown key train.stps{}; did you mean train.steps?"),
    "unknown key of a component": ("rewards.acme.weigth", "2", "unknown key rewards.acme.weigth{}; did you mean"),
    "wrong type": ("train.steps", "abc", "train.steps=abc{}: must be a whole number"),
    "beyond its limit": ("train.lr", "-1", "train.lr=-1.0{}: must be at least 0"),
    "no choice": ("train.dtype", "float16", "train.dtype=float16{}: must be one of float32, bfloat16; did you mean"),
    "without effect": ("train.lr_min", "1e-7", "train.lr_min=1e-07{} is not used by train.lr_schedule=constant"),
    "impossible together": ("algorithm.updates_per_rollout", "5", "algorithm.updates_per_rollout=5{} equal updates"),
    "not chosen": ("filters.acme.every", "2", "filters.acme{} is set, but filter 'acme' is not chosen"),
}
"""Mistake -> (key, value, what is told, with the place at the braces)"""

COMMAND_LINE = {"command line": "", "command line with +": "+", "command line with ++": "++"}


def nested(key, value):
    """The YAML of one value."""
    for name in reversed(key.split(".")):
        value = f"{{{name}: {value}}}"
    return f"# @package _global_\n{value[1:-1]}\n"


@pytest.fixture
def told(acme, capsys):
    """The one line of `vime config` with a mistake."""

    def run(*arguments):
        assert main(["config", *OVERRIDES, *arguments]) == 2
        output = capsys.readouterr()
        assert output.out == ""
        [line] = output.err.splitlines()
        return line.removeprefix("error: ")

    return run


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("plus", COMMAND_LINE.values(), ids=COMMAND_LINE)
def test_from_the_command_line(told, mistake, plus):
    key, value, message = MISTAKES[mistake]
    assert message.format(" (command line)") in told(f"{plus}{key}={value}")


@pytest.mark.parametrize("mistake", MISTAKES)
def test_from_an_experiment(told, mistake, tmp_path):
    key, value, message = MISTAKES[mistake]
    (tmp_path / "conf" / "experiment" / "bad.yaml").write_text(nested(key, value))
    line = told("--config-dir", str(tmp_path / "conf"), "experiment=bad")
    assert message.format(" (experiment/bad.yaml)") in line


@pytest.mark.parametrize("mistake", MISTAKES)
def test_from_yaml_that_a_plugin_ships(told, mistake, site):
    key, value, message = MISTAKES[mistake]
    folder = site.folder / "acme" / "conf" / "experiment"
    folder.mkdir(parents=True)
    (folder / "acme_bad.yaml").write_text(nested(key, value))
    place = " (experiment/acme_bad.yaml of plugin acme (acme 1.0))"
    assert message.format(place) in told("experiment=acme_bad")


@pytest.mark.parametrize("mistake", [name for name in MISTAKES if name not in ("without effect", "not chosen")])
def test_from_a_saved_configuration(told, mistake, acme, tmp_path, capsys):
    key, value, message = MISTAKES[mistake]
    assert main(["config", *OVERRIDES, "--no-provenance"]) == 0
    saved = tmp_path / "saved.yaml"
    tree = yaml.safe_load(capsys.readouterr().out)
    section, name = key.rsplit(".", 1)
    node = tree
    for part in section.split("."):
        node = node[part]
    node[name] = yaml.safe_load(value)
    saved.write_text(yaml.safe_dump(tree))
    assert main(["config", "--config", str(saved)]) == 2
    assert message.format(" (saved.yaml)") in capsys.readouterr().err


def test_a_component_that_a_file_chooses_and_nobody_brings(told, tmp_path):
    experiment = tmp_path / "conf" / "experiment" / "bad.yaml"
    for text, what in {
        "defaults:\n  - override /filter: [nosuch]": "unknown filter 'nosuch'",
        "data: {name: other}": "unknown prompt source 'other'",
        "rewards: {other: {weight: 2}}": "unknown reward 'other'",
    }.items():
        experiment.write_text(f"# @package _global_\n{text}\n")
        line = told("--config-dir", str(tmp_path / "conf"), "experiment=bad")
        assert line.startswith(f"{what}; there are ")
        assert line.endswith("(chosen in experiment/bad.yaml)")


def test_a_file_that_a_file_includes_and_nobody_has(told, tmp_path):
    (tmp_path / "conf" / "experiment" / "bad.yaml").write_text(
        "# @package _global_\ndefaults:\n  - override /hardware: cpuu\n"
    )
    line = told("--config-dir", str(tmp_path / "conf"), "experiment=bad")
    assert line.startswith("unknown hardware 'cpuu' (experiment/bad.yaml); there are ")
    assert "did you mean cpu?" in line


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["sync.probe=false", "sync.probe_tolerance=0.1"],
            "sync.probe_tolerance=0.1{} is not used by sync.probe=False",
        ),
        (["data.shuffle=false", "data.seed=3"], "data.seed=3{} is not used by data.shuffle=False"),
        (["resume.run=/run"], "resume.run=/run{} is not used by resume.mode=never"),
        (
            ["rollout=replay", "rollout.path=/run", "sync=auto", "rollout.num_engines=2"],
            "rollout.num_engines=2{} is not used by rollout=replay",
        ),
        (["evals.a.path=/e"], "evals.a{} is never used: set eval.every=<steps>"),
    ],
)
def test_what_the_chosen_mode_does_not_use(told, overrides, message):
    assert message.format(" (command line)") in told("sync=auto", *overrides)


@pytest.fixture
def sync_fits_all(site):
    """The strategy `acme` works with every training backend."""
    hooks = site.folder / "acme" / "hooks.py"
    text = hooks.read_text()
    assert "rollout_backends" in text
    hooks.write_text(text.replace('("train_backends", "rollout_backends")', '("rollout_backends",)'))


def test_training_settings_without_training(told, sync_fits_all):
    assert "train.lr=0.001 (command line) is not used by train=none" in told("train=none", "train.lr=1e-3")


def test_what_was_set_before_the_mode_was_chosen_is_left_alone(acme, experiment, sync_fits_all):
    experiment("mine", "train: {lr: 1e-3, lr_schedule: cosine, lr_min: 1e-6}\n")
    assert acme("experiment=mine", "train=none", "sync=auto").typed.train.lr == 1e-3
    assert acme("experiment=mine", "train.lr_schedule=constant").typed.train.lr_min == 1e-6


def test_a_component_declares_what_has_no_effect(site, acme):
    hooks = site.folder / "acme" / "hooks.py"
    field = "    strictness: int = 3\n"
    more = '    lenient: bool = False\n    strictness: int = schema.option(3, unused_if=("lenient", True))\n'
    hooks.write_text(hooks.read_text().replace(field, more))
    assert acme("rewards.acme.strictness=4").typed.rewards.acme.strictness == 4
    with pytest.raises(ConfigError, match=r"rewards\.acme\.strictness=4 .* is not used by rewards\.acme\.lenient=True"):
        acme("rewards.acme.strictness=4", "rewards.acme.lenient=true")


def test_experiments_of_a_plugin_are_found_and_said_to_be_its_own(site, acme):
    folder = site.folder / "acme" / "conf" / "experiment"
    folder.mkdir(parents=True)
    (folder / "acme_quick.yaml").write_text("# @package _global_\ntrain: {steps: 3}\n")
    composed = acme("experiment=acme_quick")
    assert composed.typed.train.steps == 3
    assert composed.provenance["train.steps"] == "experiment/acme_quick.yaml of plugin acme (acme 1.0)"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["algorithm.kl_estimator=k1"],
            "algorithm.kl_estimator=k1 (command line) is not used by algorithm.kl_coef=0.0",
        ),
        (
            ["rewards.dapo_math.compat=official", "rewards.dapo_math.wrong_score=-1"],
            "rewards.dapo_math.wrong_score=-1.0 (command line) is not used by rewards.dapo_math.compat=official",
        ),
    ],
)
def test_what_a_component_of_the_repository_does_not_use(overrides, message, capsys):
    assert main(["config", *overrides]) == 2
    assert message in capsys.readouterr().err
