import subprocess
import sys

import pytest

from vime_core.cli import main
from vime_core.run.folder import RunFolder


@pytest.fixture
def run(tmp_path):
    folder = RunFolder.create_at(tmp_path / "run")
    folder.config_file.write_text("train: {steps: 3}\n")
    return folder


def test_the_page_lies_in_the_run_folder_and_can_be_made_again(run, capsys):
    for _ in range(2):
        assert main(["report", str(run.path)]) == 0
        assert capsys.readouterr().out == f"{run.path / 'report.html'}\n"
    assert "</html>" in (run.path / "report.html").read_text()


def test_the_page_can_lie_elsewhere_and_the_run_is_only_read(run, tmp_path):
    before = sorted(run.path.rglob("*"))
    assert main(["report", str(run.path), "--output", str(tmp_path / "page.html")]) == 0
    assert (tmp_path / "page.html").is_file()
    assert sorted(run.path.rglob("*")) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{folder}/nosuch"], "{folder}/nosuch is no run folder: there is no such folder"),
        (["{folder}"], "{folder} is no run folder: it has no config.yaml"),
        (["{folder}/run", "--output", "{folder}/no/page.html"], "cannot write {folder}/no/page.html: No such file"),
        (["{folder}/run", "--output", "{folder}/run"], "cannot write {folder}/run: Is a directory; choose another"),
        ([], "vime report: the following arguments are required: RUN"),
    ],
)
def test_a_mistake_is_one_line_and_exit_2(run, tmp_path, capsys, arguments, message):
    assert main(["report", *(argument.format(folder=tmp_path) for argument in arguments)]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {message.format(folder=tmp_path)}")
    assert not list(tmp_path.rglob("*.partial"))


def test_the_command_imports_nothing_heavy(run):
    program = (
        "import sys; from vime_core.cli import main; main(['report', sys.argv[1]]); "
        "print(*{'torch', 'ray', 'vllm', 'megatron', 'transformers'} & sys.modules.keys())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(run.path)], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.splitlines()[1:] == [""]
