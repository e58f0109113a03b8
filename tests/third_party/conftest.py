"""What a stranger has: wheels of vime, pip, an empty environment, and no clone of the repository."""

import json
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECTS = [ROOT, *sorted(file.parent for file in ROOT.glob("plugins/*/pyproject.toml"))]
QUIET = ("-q", "--disable-pip-version-check", "--no-input")
INSTALL_DEADLINE_S = 900


class CleanEnvironment:
    """A virtual environment without anything of vime, whose commands run outside of the repository.

    Args:
        folder: below it are the environment and the working folder.
        shell_environment: what its commands inherit.
        from_scratch: whether pip installs the CPU set into it, as the Makefile does. Otherwise it sees the packages of
            the environment of this process: one line in a `.pth` file adds that `site-packages` behind its own. Paths
            in the `.pth` files there are not followed, so the repository, installed editable, stays out of reach.
    """

    def __init__(self, folder: Path, shell_environment: dict[str, str], *, from_scratch: bool) -> None:
        self.shell_environment = shell_environment
        self.work = folder / "work"
        self.work.mkdir()
        self.bin = folder / "venv" / "bin"
        without_pip = [] if from_scratch else ["--without-pip"]
        subprocess.run([sys.executable, "-m", "venv", *without_pip, str(folder / "venv")], check=True, timeout=120)
        [self.site] = folder.glob("venv/lib/python*/site-packages")
        if from_scratch:
            self._install_cpu_set()
        else:
            (self.site / "cpu_set.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")

    def _install_cpu_set(self) -> None:
        makefile = (ROOT / "Makefile").read_text()
        torch, index = (
            re.search(rf"^{name} \??:?= (.+)$", makefile, re.MULTILINE)[1] for name in ("TORCH", "TORCH_INDEX")
        )
        if self.pip("install", *QUIET, "--no-deps", torch).returncode:
            self.done(self.pip("install", *QUIET, "--no-deps", "--index-url", index, torch))
        self.done(self.pip("install", *QUIET, "--no-deps", "-r", ROOT / "requirements" / "cpu.txt"))

    def run(self, *command, timeout=INSTALL_DEADLINE_S):
        """One command, with this environment's programs first on the path and nothing of the caller's Python."""
        kept = {
            name: value
            for name, value in self.shell_environment.items()
            if not name.startswith(("PYTHON", "VIME_", "VIRTUAL"))
        }
        return subprocess.run(
            [str(item) for item in command],
            cwd=self.work,
            env={**kept, "PATH": f"{self.bin}:{kept['PATH']}"},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def pip(self, *arguments):
        return self.run("python", "-m", "pip", *arguments)

    def done(self, finished):
        """What a command printed; it must have succeeded."""
        assert finished.returncode == 0, f"{finished.args}\n{finished.stdout}\n{finished.stderr}"
        return finished.stdout

    def versions(self) -> dict[str, str]:
        """Normalised name -> version of every distribution that pip sees."""
        listed = json.loads(self.done(self.pip("list", "--format=json", "--disable-pip-version-check")))
        return {re.sub(r"[-_.]+", "-", item["name"]).lower(): item["version"] for item in listed}


@pytest.fixture(scope="module")
def wheels(tmp_path_factory) -> list[Path]:
    """The wheel of every distribution of the repository."""
    folder = tmp_path_factory.mktemp("wheels")
    command = [sys.executable, "-m", "pip", "wheel", *QUIET, "--no-deps", "--no-build-isolation", "-w", str(folder)]
    built = subprocess.run([*command, *map(str, PROJECTS)], capture_output=True, text=True, timeout=300, check=False)
    assert built.returncode == 0, built.stderr
    return sorted(folder.glob("*.whl"))


@pytest.fixture(scope="module", params=["beside", pytest.param("scratch", marks=pytest.mark.full)])
def environment(request, tmp_path_factory, wheels, shell_environment) -> CleanEnvironment:
    """An environment into which pip has installed every wheel of vime.

    Without the extra `cpu` of vime-vllm: the CPU set is there, and leaves out what breaks beside torch's CPU build.
    """
    folder = tmp_path_factory.mktemp("clean")
    made = CleanEnvironment(folder, shell_environment, from_scratch=request.param == "scratch")
    made.done(made.pip("install", *QUIET, *wheels))
    return made
