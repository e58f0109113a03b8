"""Write cpu.txt: the packages of cpu.in and all they need, at the versions of this environment.

    .venv/bin/python requirements/lock.py            (or: make lock)

Reads metadata of installed packages only. To move a version, install it, run the tests and write the lock again.
"""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

FOLDER = Path(__file__).parent

OWN_LINE = {"torch"}
"""Installed by the Makefile in a step of its own; what it needs is in the lock."""

LEFT_OUT = {"torchvision", "torchaudio", "torchcodec"}
"""vLLM asks for them, text models do not use them, and their usual builds cannot be imported beside a CPU torch."""

HEADER = """\
# All packages of a CPU installation, written by lock.py from cpu.in. Install with --no-deps, after torch.
# Made with Python 3.11 on x86-64 Linux.
"""


def read_requirements(file: Path) -> list[Requirement]:
    """The requirements of a file, without comments."""
    lines = (re.sub(r"(^|\s)#.*", "", line).strip() for line in file.read_text(encoding="utf-8").splitlines())
    return [Requirement(line) for line in lines if line]


def closure(roots: list[Requirement]) -> dict[str, str]:
    """Name and version of everything that `roots` need here.

    Raises:
        SystemExit: names a package that is needed and not installed.
    """
    versions: dict[str, str] = {}
    seen: set[tuple[str, str]] = set()
    waiting = [(root, "") for root in roots]
    while waiting:
        requirement, parent = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name in LEFT_OUT:
            continue
        for extra in ("", *requirement.extras):
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            versions[name], needs = _installed(name, parent)
            waiting += [(need, name) for need in needs if need.marker is None or need.marker.evaluate({"extra": extra})]
    return versions


def _installed(name: str, parent: str) -> tuple[str, list[Requirement]]:
    try:
        found = distribution(name)
    except PackageNotFoundError:
        raise SystemExit(f"{name} is not installed, and {parent or 'cpu.in'} needs it: install it first") from None
    return found.version, [Requirement(line) for line in found.requires or ()]


def main() -> None:
    """Write the lock beside this script."""
    versions = closure([*read_requirements(FOLDER / "cpu.in"), *map(Requirement, OWN_LINE)])
    pins = [f"{name}=={version}\n" for name, version in sorted(versions.items()) if name not in OWN_LINE]
    (FOLDER / "cpu.txt").write_text(HEADER + "".join(pins), encoding="utf-8")


if __name__ == "__main__":
    main()
