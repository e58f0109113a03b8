"""What a user installs: the configuration is in the wheel, and `vime` runs from it."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import tomllib

from vime_core import __version__

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel of vime-core unpacked, as pip lays it out."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=240)
    [wheel] = folder.glob("vime_core-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def test_the_wheel_holds_every_configuration_file_and_nothing_else_of_the_repository(installed):
    shipped = {file.relative_to(ROOT) for file in (ROOT / "conf").rglob("*.yaml")}
    assert shipped
    assert {file.relative_to(installed / "vime_core") for file in installed.rglob("*.yaml")} == shipped
    assert {path.name for path in installed.iterdir()} == {"vime_core", f"vime_core-{__version__}.dist-info"}
    assert (installed / "vime_core" / "py.typed").exists()


def test_a_configuration_composes_from_the_wheel(installed):
    script = (
        f"import sys; sys.path.insert(0, {str(installed)!r})\n"
        "from vime_core.config.location import conf_folder\n"
        "from vime_core.cli import main\n"
        "print(conf_folder(), file=sys.stderr)\n"
        "sys.exit(main(['config', '--json', 'hardware=cpu']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=installed, capture_output=True, text=True, timeout=240, check=True
    )
    assert done.stderr.splitlines()[0] == str(installed / "vime_core" / "conf")
    content = json.loads(done.stdout)
    assert content["provenance"]["train.dtype"] == "hardware/cpu.yaml"


def test_a_report_is_written_from_the_wheel(installed, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text("train: {steps: 1}\n")
    script = (
        f"import sys; sys.path.insert(0, {str(installed)!r})\n"
        "import vime_core.report\n"
        "from vime_core.cli import main\n"
        f"assert vime_core.report.__file__.startswith({str(installed)!r})\n"
        f"sys.exit(main(['report', {str(run)!r}]))\n"
    )
    subprocess.run([sys.executable, "-c", script], cwd=installed, capture_output=True, timeout=240, check=True)
    assert "</html>" in (run / "report.html").read_text()


def test_all_distributions_have_the_version_of_core_and_require_it():
    files = [ROOT / "pyproject.toml", *sorted(ROOT.glob("plugins/*/pyproject.toml"))]
    projects = {file.parent.name: tomllib.loads(file.read_text())["project"] for file in files}
    assert len(projects) == 7
    assert {project["version"] for project in projects.values()} == {__version__}
    major, minor, _ = __version__.split(".")
    for name, project in projects.items():
        if name != ROOT.name:
            assert f"vime-core>={major}.{minor},<{major}.{int(minor) + 1}" in project["dependencies"]
            [(entry, module)] = project["entry-points"]["vime"].items()
            assert (f"vime_{entry}", f"{name}.hooks") == (name, module)


def test_a_plugin_package_is_written_from_the_wheel(installed, tmp_path):
    shipped = {file.relative_to(ROOT) for file in (ROOT / "vime_core" / "templates").rglob("*") if file.is_file()}
    assert {file.relative_to(installed) for file in (installed / "vime_core" / "templates").rglob("*.jinja")} == shipped
    script = (
        f"import sys; sys.path.insert(0, {str(installed)!r})\n"
        "import vime_core.scaffold\n"
        "from vime_core.cli import main\n"
        f"assert vime_core.scaffold.__file__.startswith({str(installed)!r})\n"
        "sys.exit(main(['new', 'reward', 'demo']))\n"
    )
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, timeout=240, check=True)
    assert (tmp_path / "vime-demo" / "vime_demo" / "reward.py").is_file()
