"""Installed distributions that exist only for a test: real metadata, real modules, no pip."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class FakeSite:
    """A folder of installed distributions.

    Args:
        folder: where they are written; put it on `sys.path` (`activate` does) or into `PYTHONPATH` of a subprocess.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def install(
        self,
        distribution: str,
        entry_points: Mapping[str, str],
        modules: Mapping[str, str],
        *,
        version: str = "1.0",
    ) -> None:
        """Write one distribution.

        Args:
            distribution: its name, e.g. `acme-vime-reward`.
            entry_points: entry points of group `vime`: name -> `package.hooks`.
            modules: file below the site folder, e.g. `acme/hooks.py` -> its source, which is dedented.
            version: its version.
        """
        info = self.folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
        lines = [f"{name} = {value}" for name, value in entry_points.items()]
        (info / "entry_points.txt").write_text("\n".join(["[vime]", *lines, ""]))
        for name, source in modules.items():
            file = self.folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            (file.parent / "__init__.py").touch()
            file.write_text(dedent(source))
        importlib.invalidate_caches()

    def activate(self) -> Iterator[FakeSite]:
        """For a pytest fixture: on `sys.path` until the generator is resumed; then its modules are forgotten."""
        sys.path.insert(0, str(self.folder))
        importlib.invalidate_caches()
        try:
            yield self
        finally:
            sys.path.remove(str(self.folder))
            for name, module in list(sys.modules.items()):
                if Path(getattr(module, "__file__", None) or "/").is_relative_to(self.folder):
                    del sys.modules[name]
            importlib.invalidate_caches()
