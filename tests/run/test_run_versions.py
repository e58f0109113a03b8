import json
import platform

import pytest

from vime_core import __version__
from vime_core.errors import RunFolderError
from vime_core.run.folder import RunFolder
from vime_core.run.versions import installed_versions, read_versions, write_versions


def test_core_and_what_it_asks_for_are_there():
    versions = installed_versions()
    assert versions["python"] == platform.python_version()
    assert versions["vime-core"] == __version__
    assert {"numpy", "ray", "transformers", "pyarrow"} <= versions.keys()
    assert not {"pytest", "ruff", "mypy"} & versions.keys()


def test_what_is_written_is_read(tmp_path):
    write_versions(tmp_path / "versions.json")
    assert read_versions(tmp_path / "versions.json") == installed_versions()


@pytest.mark.parametrize("content", [None, "{", "[]", '"1"'])
def test_a_file_that_says_nothing_is_empty(tmp_path, content):
    if content is not None:
        (tmp_path / "versions.json").write_text(content)
    assert read_versions(tmp_path / "versions.json") == {}


def test_finding_a_run_changes_nothing(tmp_path):
    (tmp_path / "config.yaml").write_text(json.dumps({}))
    assert RunFolder.find(tmp_path).path == tmp_path
    assert [file.name for file in tmp_path.iterdir()] == ["config.yaml"]


@pytest.mark.parametrize(("name", "problem"), [("", "it has no config.yaml"), ("no", "there is no such folder")])
def test_what_is_no_run_folder_is_told(tmp_path, name, problem):
    with pytest.raises(RunFolderError, match=rf"is no run folder: {problem}; give one like outputs/"):
        RunFolder.find(tmp_path / name)
