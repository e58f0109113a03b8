"""Writes a complete plugin package from the templates beside this file."""

from __future__ import annotations

import keyword
import re
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from vime_core.errors import UserError
from vime_core.plugins.discovery import CORE, discover
from vime_core.plugins.kinds import AUTO
from vime_core.plugins.manager import load_plugins
from vime_core.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

TEMPLATES = Path(__file__).with_name("templates")

COMMON = "common"
"""Folder of the files that every package has."""

SUFFIX = ".jinja"

PACKAGE = "package"
"""Folder of a template that becomes the import package."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What a package of a kind needs."""

    summary: str
    requirements: tuple[str, ...]
    """Besides vime-core."""


KINDS: Mapping[str, Kind] = {
    "reward": Kind("A reward for vime", ()),
    "algorithm": Kind("An algorithm for vime", ("numpy>=1.26", "torch>=2.6")),
    "model": Kind("A model family for vime", ()),
    "rollout": Kind("A rollout backend for vime", ("numpy>=1.26", "safetensors>=0.4", "torch>=2.6", "xxhash>=3.4")),
    "sync": Kind("A sync strategy for vime", ("safetensors>=0.4", "torch>=2.6", "xxhash>=3.4")),
}
"""What `vime new` can write; each is a folder of templates."""


def write_package(kind: str, name: str, folder: Path | None = None, *, rollout_backend: str | None = None) -> Path:
    """Write a package `vime-<name>` with one component, its settings and its conformance test.

    Args:
        kind: a key of `KINDS`.
        name: of the component and of the plugin.
        folder: where; `vime-<name>` in the working folder when None. It must not exist.
        rollout_backend: of a sync strategy only: whose engines it pushes into; `<name>_rollout` when None.

    Returns:
        The folder.

    Raises:
        UserError: for an unknown kind, a name that no component can have or that is taken, a rollout backend of another
            kind, and a folder that exists or cannot be written.
    """
    _check_kind(kind)
    _check_name(name)
    _check_taken(kind, name)
    if rollout_backend is not None:
        if kind != "sync":
            raise UserError(f"vime new: --rollout-backend is for kind sync, not {kind}; leave it out")
        _check_name(rollout_backend)
    target = folder or Path(f"vime-{name.replace('_', '-')}")
    files = dict(_rendered(kind, name, rollout_backend or f"{name}_rollout"))
    try:
        target.mkdir(parents=True)
        for path, text in files.items():
            file = target / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
    except FileExistsError as error:
        raise UserError(f"{target} exists; remove it, or give another folder with --folder") from error
    except OSError as error:
        raise UserError(f"cannot write {target}: {error.strerror}; give another folder with --folder") from error
    return target


def _check_kind(kind: str) -> None:
    if kind not in KINDS:
        close = get_close_matches(kind, KINDS, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(KINDS)}"
        raise UserError(f"vime new: unknown kind {kind!r}; {hint}")


def _check_name(name: str) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        proposed = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_0123456789")
        hint = f", e.g. {proposed}" if proposed else ""
        raise UserError(f"vime new: name {name!r} must be lower case letters, digits and underscores{hint}")
    if name in (AUTO, CORE) or keyword.iskeyword(name):
        raise UserError(f"vime new: the name {name!r} is reserved; choose another")


def _check_taken(kind: str, name: str) -> None:
    """A plugin of that name, or a component of that kind, would make both of them ambiguous."""
    taken = [candidate.info for candidate in discover() if candidate.info.name == name]
    if taken:
        raise UserError(f"vime new: plugin {taken[0]} is installed and has the name {name!r}; choose another")
    for registered in load_plugins().registered:
        if (registered.entry.group, registered.entry.name) == (kind, name):
            raise UserError(f"vime new: plugin {registered.plugin} has a {kind} {name!r}; choose another name")


def _rendered(kind: str, name: str, rollout_backend: str) -> Iterator[tuple[Path, str]]:
    """Path below the package's folder, and text, of every file."""
    import jinja2

    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, keep_trailing_newline=True, trim_blocks=True, autoescape=False
    )
    package = f"vime_{name}"
    values = {
        "name": name,
        "package": package,
        "distribution": package.replace("_", "-"),
        "class_name": "".join(part.capitalize() for part in name.split("_")),
        "rollout_backend": rollout_backend,
        "description": KINDS[kind].summary,
        "dependencies": [_core_range(), *KINDS[kind].requirements],
    }
    for folder in (TEMPLATES / COMMON, TEMPLATES / kind):
        for file in sorted(folder.rglob(f"*{SUFFIX}")):
            path = file.relative_to(folder)
            parts = [package if part == PACKAGE else part for part in path.parts[:-1]]
            text = environment.from_string(file.read_text(encoding="utf-8")).render(values)
            yield Path(*parts, path.name.removesuffix(SUFFIX)), text


def _core_range() -> str:
    """The versions of core whose public API stays as it is."""
    major, minor, *_ = __version__.split(".")
    return f"vime-core>={major}.{minor},<{major}.{int(minor) + 1}"
