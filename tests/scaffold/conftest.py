"""An environment of its own to install generated packages into, with everything of this one in reach."""

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

PIP = ("-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check")


class Environment:
    """A virtual environment; `vime`, `pip`, `pytest` and `python` are on its path."""

    def __init__(self, folder: Path, shell_environment: dict[str, str]) -> None:
        self.folder = folder / "venv"
        self.shell_environment = shell_environment
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(self.folder)], check=True, timeout=120)
        self.python = self.folder / "bin" / "python"
        [site] = self.folder.glob("lib/python*/site-packages")
        outer = sysconfig.get_paths()["purelib"]
        (site / "outer.pth").write_text(f"import site; site.addsitedir({outer!r})\n")
        for name, module in {"vime": "vime_core.cli", "pip": "pip", "pytest": "pytest"}.items():
            script = self.folder / "bin" / name
            script.write_text(f'#!/bin/sh\nexec "{self.python}" -m {module} "$@"\n')
            script.chmod(0o755)

    def run(self, *command, cwd=None, timeout=420, **variables):
        inherited = self.shell_environment
        environment = {**inherited, "PATH": f"{self.folder / 'bin'}:{inherited['PATH']}", **variables}
        return subprocess.run(
            [str(item) for item in command],
            cwd=cwd,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def install(self, folder: Path) -> None:
        """As `pip install -e`, without network."""
        done = self.run(self.python, *PIP, "-e", folder)
        assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def environment(tmp_path_factory, shell_environment):
    return Environment(tmp_path_factory.mktemp("environment"), shell_environment)
