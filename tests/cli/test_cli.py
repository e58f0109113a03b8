import json
import os
import signal
import subprocess
import sys

import pytest
import yaml

from vime_core import __version__
from vime_core.cli import main
from vime_core.cli.app import COMMANDS, one_line
from vime_core.errors import DeadlineError
from vime_core.testing.components import OVERRIDES

HEAVY = ("torch", "ray", "vllm", "megatron", "transformers")
PATHS = ["model.path=/m", "data.train=/d"]


def failed_line(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line of a command that fails because of the user."""
    assert main(arguments) == 2
    output = capsys.readouterr()
    assert output.out == ""
    [line] = output.err.splitlines()
    assert line.startswith("error: ")
    return line.removeprefix("error: ")


def test_help_and_version(capsys):
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"  {command} " in text for command in COMMANDS)
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"vime {__version__}\n"
    assert main([]) == 2
    assert "usage: vime <command>" in capsys.readouterr().err


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command, capsys, site):
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    assert caught.value.code == 0
    assert f"usage: vime {command}" in capsys.readouterr().out


def test_the_help_of_train_lists_the_choices(capsys, site):
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    text = capsys.readouterr().out
    for line in ("  algorithm         acme", "  sync              auto, acme", "  hardware          cpu"):
        assert line in text
    assert "vime train experiment=quickstart" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], "unknown command 'trian'; did you mean train?"),
        (["nothing"], "unknown command 'nothing'; there are train, config, "),
        (["train", "--nosuch"], "vime train: unrecognized arguments: --nosuch; see vime train --help"),
        (
            ["plugins", "lst"],
            "vime plugins: argument action: invalid choice: 'lst' (choose from 'list', 'show', 'check')",
        ),
        (["config", "lr=1", *OVERRIDES], "unknown key lr (command line); did you mean train.lr?"),
        (
            ["train", *OVERRIDES],
            "required but not set: data.train, model.path; add data.train=<value> model.path=<value>",
        ),
        (["train", *OVERRIDES, "algorithm=nosuch"], "unknown algorithm 'nosuch'; there are acme"),
        (["train", "--config", "/nosuch.yaml"], "/nosuch.yaml does not exist"),
        (["config", *OVERRIDES, "--validate"], "required but not set: data.train, model.path"),
        (["config", *OVERRIDES, *PATHS, "--validate"], "model.path /m is not a folder"),
    ],
)
def test_a_mistake_is_one_line_and_exit_2(capsys, site, arguments, message):
    assert failed_line(capsys, *arguments).startswith(message)


def test_eval_looks_at_its_output_before_all_else(capsys, tmp_path):
    (tmp_path / "config.yaml").touch()
    line = failed_line(capsys, "eval", "--run", str(tmp_path), "--output", str(tmp_path))
    assert line == f"{tmp_path} is not empty: give a new folder with --output"
    file = tmp_path / "config.yaml"
    assert failed_line(capsys, "eval", "--output", str(file)) == f"{file} cannot be a folder: {file} is a file"
    assert list(tmp_path.iterdir()) == [file]


def test_the_traceback_is_shown_on_request_wherever_the_option_stands(capsys, site):
    site.install("broken", {"broken": "broken.hooks"}, {"broken/hooks.py": "1/0"})
    selected = ["train", *OVERRIDES, "reward=broken"]
    for arguments in (["--traceback", *selected], [*selected, "--traceback"]):
        assert main(arguments) == 2
        error = capsys.readouterr().err
        assert "broken/hooks.py" in error
        assert error.splitlines()[-1] == (
            "error: reward 'broken': plugin broken (broken 1.0) failed: ZeroDivisionError: division by zero; "
            "--traceback shows where"
        )


def test_errors_of_a_run_have_their_own_status_and_keep_their_notes(capsys, site, monkeypatch):
    def late(composed):
        error = DeadlineError("the trainer did not\nanswer")
        error.__notes__ = ["raised by plugin acme (acme 1.0), in reward 'acme'"]
        raise error

    monkeypatch.setitem(sys.modules, "vime_core.loop.train", type(sys)("vime_core.loop.train"))
    monkeypatch.setattr(sys.modules["vime_core.loop.train"], "run", late, raising=False)
    assert main(["train", *OVERRIDES, *PATHS]) == 1
    assert capsys.readouterr().err == (
        "error: the trainer did not answer (raised by plugin acme (acme 1.0), in reward 'acme')\n"
    )


def test_a_fault_of_a_plugin_is_one_line_that_names_it(capsys, site, monkeypatch):
    def faulty(composed):
        error = ZeroDivisionError("division\nby zero")
        error.__notes__ = ["raised by plugin acme (acme 1.0), in filter 'acme'"]
        raise error

    monkeypatch.setitem(sys.modules, "vime_core.loop.train", type(sys)("vime_core.loop.train"))
    monkeypatch.setattr(sys.modules["vime_core.loop.train"], "run", faulty, raising=False)
    told = "error: ZeroDivisionError: division by zero (raised by plugin acme (acme 1.0), in filter 'acme')"
    assert main(["train", *OVERRIDES, *PATHS]) == 1
    assert capsys.readouterr().err == f"{told}; --traceback shows where\n"
    assert main(["train", *OVERRIDES, *PATHS, "--traceback"]) == 1
    shown = capsys.readouterr().err
    assert "in faulty" in shown
    assert shown.splitlines()[-1] == told


def test_ctrl_c_is_exit_130(capsys, site, monkeypatch):
    def interrupted(arguments, *, show_traceback):
        raise KeyboardInterrupt

    monkeypatch.setattr("vime_core.cli.config.run", interrupted)
    assert main(["config"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_one_line_has_no_line_breaks():
    assert one_line(ValueError("a\n  b")) == "a b"


def test_train_hands_the_composed_configuration_to_the_loop(capsys, site, monkeypatch):
    monkeypatch.setitem(sys.modules, "vime_core.loop.train", type(sys)("vime_core.loop.train"))
    loop = sys.modules["vime_core.loop.train"]
    monkeypatch.setattr(loop, "run", lambda composed: composed.config.train.steps, raising=False)
    site.install("broken", {"broken": "broken.hooks"}, {"broken/hooks.py": "1/0"})
    assert main(["train", *OVERRIDES, *PATHS, "train.steps=3"]) == 3
    assert capsys.readouterr().err == (
        "warning: plugin broken (broken 1.0) failed: ZeroDivisionError: division by zero\n"
    )


def test_config_prints_yaml_with_where_each_value_came_from(capsys, site):
    assert main(["config", *OVERRIDES, "train.steps=3"]) == 0
    text = capsys.readouterr().out
    tree = yaml.safe_load(text)
    assert (tree["train"]["steps"], tree["model"]["path"]) == (3, "???")
    assert "  # command line" in next(line for line in text.splitlines() if "steps: 3" in line)
    assert main(["config", *OVERRIDES, "train.steps=3", "--no-provenance"]) == 0
    assert yaml.safe_load(capsys.readouterr().out) == tree
    assert main(["train", *OVERRIDES, "train.steps=3", "--cfg", "job"]) == 0
    assert yaml.safe_load(capsys.readouterr().out) == tree


def test_config_prints_json(capsys, site):
    assert main(["config", "--json", *OVERRIDES]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["missing"] == ["data.train", "model.path"]
    assert content["config"]["algorithm"]["clip_ratio"] == 0.2
    assert content["provenance"]["algorithm.clip_ratio"] == "default of algorithm acme"


def test_a_printed_configuration_can_be_run_again(capsys, site, tmp_path):
    assert main(["config", *OVERRIDES, *PATHS, "train.steps=3"]) == 0
    (tmp_path / "saved.yaml").write_text(capsys.readouterr().out)
    assert main(["config", "--config", str(tmp_path / "saved.yaml"), "train.lr=2e-6", "--no-provenance"]) == 0
    tree = yaml.safe_load(capsys.readouterr().out)
    assert (tree["train"]["steps"], tree["train"]["lr"]) == (3, 2e-6)


def test_the_list_of_plugins(capsys, site):
    site.install("broken", {"broken": "broken.hooks"}, {"broken/hooks.py": "1/0"})
    assert main(["plugins", "list"]) == 0
    lines = {tuple(line.split()[:3]): line for line in capsys.readouterr().out.splitlines()}
    assert "vime-core" in lines["accelerator", "cpu", "available"]
    assert lines["reward", "acme", "available"].split()[3:6] == ["acme", "acme", "1.0"]
    assert "ZeroDivisionError: division by zero" in lines["failed", "broken", "broken"]
    assert main(["plugins", "list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {"failed", "available", "blocked"} <= {row["status"] for row in rows}
    assert {"kind", "name", "plugin", "distribution", "version", "status", "detail", "summary"} == rows[0].keys()


def test_the_list_shows_why_a_plugin_failed_on_request(capsys, site):
    site.install("broken", {"broken": "broken.hooks"}, {"broken/hooks.py": "1/0"})
    assert main(["plugins", "list", "--traceback"]) == 0
    assert "broken/hooks.py" in capsys.readouterr().err


@pytest.mark.parametrize(
    "code", ["import vime_core", "main(['plugins', 'list'])", "main(['config'])", "main(['train'])"]
)
def test_nothing_heavy_is_imported_with_the_real_plugins(code):
    script = f"""
import sys
from vime_core.cli import main
{code}
print("HEAVY", [name for name in {HEAVY} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.splitlines()[-1] == "HEAVY []"
    assert "Traceback" not in done.stderr


def run_train(site, *arguments: str, code: str) -> subprocess.CompletedProcess[str]:
    """`vime train` in a process of its own, with a loop that runs `code` instead of training."""
    stub = site.folder / "sitecustomize.py"
    stub.write_text(
        "import sys, types\nloop = types.ModuleType('vime_core.loop.train')\n"
        f"exec('''def run(composed):\\n    {code}''', loop.__dict__)\nsys.modules['vime_core.loop.train'] = loop\n"
    )
    return subprocess.run(
        [sys.executable, "-m", "vime_core.cli", "train", *OVERRIDES, *PATHS, *arguments],
        env={**os.environ, "PYTHONPATH": str(site.folder)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_several_runs_in_turn(site):
    code = 'print("RUN", composed.config.train.steps, composed.config.run.name, flush=True)'
    done = run_train(site, "train.steps=1,2", "run.name=a", "--multirun", code=code)
    assert [line for line in done.stdout.splitlines() if line.startswith("RUN")] == ["RUN 1 a", "RUN 2 a"]
    assert done.returncode == 0


def test_a_run_that_fails_ends_the_series_with_its_status(site):
    done = run_train(site, "train.steps=1,2,3", "-m", code="return composed.config.train.steps - 1")
    assert done.returncode == 1
    assert "job 2 of 3" in done.stdout
    assert "job 3 of 3" not in done.stdout
    assert done.stderr == "job 2 ended with status 1; 1 not started\n"


def test_no_job_starts_when_one_of_them_is_wrong(site):
    done = run_train(site, "train.steps=1,-2", "-m", code='print("RUN", flush=True)')
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: train.steps=-2 (command line): must be at least 0\n"


def test_a_run_ended_by_a_signal_has_the_status_of_a_shell(site):
    code = f"import os; os.kill(os.getpid(), {int(signal.SIGTERM)})"
    assert run_train(site, "train.steps=1", "-m", code=code).returncode == 128 + signal.SIGTERM
