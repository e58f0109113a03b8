"""The lock, the Makefile and the check of a commit."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")

ROOT = Path(__file__).parents[2]
PROJECTS = [ROOT / "pyproject.toml", *sorted(ROOT.glob("plugins/*/pyproject.toml"))]
CPU_EXTRAS = {"vime-core": "dev", "vime-vllm": "cpu"}


@pytest.fixture(scope="module")
def lock_script():
    spec = importlib.util.spec_from_file_location("lock_script", ROOT / "requirements" / "lock.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pins(lock_script):
    """Package name -> locked version."""
    requirements = lock_script.read_requirements(ROOT / "requirements" / "cpu.txt")
    assert all(re.fullmatch(r"==[^*,]+", str(requirement.specifier)) for requirement in requirements)
    return {canonicalize_name(r.name): str(r.specifier).removeprefix("==") for r in requirements}


def needs_of(file):
    """What a distribution needs on a CPU, without other distributions of vime and without torch."""
    project = tomllib.loads(file.read_text())["project"]
    extra = project.get("optional-dependencies", {}).get(CPU_EXTRAS.get(project["name"]), [])
    needs = [Requirement(line) for line in (*project["dependencies"], *extra)]
    return [need for need in needs if not need.name.startswith("vime-") and need.name != "torch"]


def test_there_are_seven_distributions():
    assert len(PROJECTS) == 7


@pytest.mark.parametrize("file", PROJECTS, ids=lambda file: file.parent.name)
def test_the_lock_holds_what_a_distribution_needs(file, pins):
    for need in needs_of(file):
        version = pins.get(canonicalize_name(need.name))
        assert version is not None, f"{need} is not in requirements/cpu.txt: run make lock"
        assert need.specifier.contains(version), f"{need} is not met by {version}"


def test_the_lock_holds_the_direct_requirements(lock_script, pins):
    for need in lock_script.read_requirements(ROOT / "requirements" / "cpu.in"):
        assert need.specifier.contains(pins[canonicalize_name(need.name)])


def test_the_lock_leaves_out_torch_and_what_breaks_beside_its_cpu_build(lock_script, pins):
    assert not {"torch", *lock_script.LEFT_OUT} & pins.keys()


def test_the_lock_holds_what_its_packages_need(lock_script, pins):
    """At least as much as here; a package that this environment has in another version may need other packages."""
    found = lock_script.closure([Requirement(name) for name in ("pytest", "hydra-core", "torch")])
    assert {"iniconfig", "omegaconf", "antlr4-python3-runtime", "sympy"} <= found.keys()
    assert found.keys() - {"torch"} <= pins.keys()


def test_extras_are_followed(lock_script):
    assert "pysocks" not in lock_script.closure([Requirement("requests")])
    with pytest.raises(SystemExit, match="pysocks is not installed, and requests needs it"):
        lock_script.closure([Requirement("requests[socks]")])


def test_the_lock_is_written_whole(lock_script, tmp_path, monkeypatch):
    (tmp_path / "cpu.in").write_text("# tools\npytest>=8\ntorch  # left to the Makefile\n")
    monkeypatch.setattr(lock_script, "FOLDER", tmp_path)
    lock_script.main()
    lines = (tmp_path / "cpu.txt").read_text().splitlines()
    names = [line.split("==")[0] for line in lines if not line.startswith("#")]
    assert names == sorted(names)
    assert "pytest" in names
    assert "torch" not in names


def commands(*targets):
    """What make would run."""
    made = subprocess.run(
        ["make", "--dry-run", "--always-make", *targets], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return made.stdout


def test_installing_puts_torch_first_and_everything_else_without_dependencies():
    installs = [line for line in commands("install").splitlines() if "/pip install" in line]
    assert "torch==" in installs[0]
    assert "requirements/cpu.txt" in installs[1]
    assert all("--no-deps" in line for line in installs)
    assert installs[2].count(" -e ") == len(PROJECTS)


def test_the_quickstart_installs_and_hands_settings_on():
    text = commands("quickstart", "SEED=2", "OVERRIDES=train.lr=0 train.steps=3")
    assert text.index("pip install") < text.index("examples.quickstart.run run.seed=2 train.lr=0 train.steps=3")


def test_the_check_lints_and_tests():
    text = commands("test")
    for tool in ("ruff check", "ruff format --check", "mypy", "lint-imports", 'pytest -m "not full"'):
        assert tool in text
    assert "not full" not in commands("test-full")


def test_the_check_of_a_commit_can_be_run():
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    subprocess.run(["bash", "-n", script], check=True)
