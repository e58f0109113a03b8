"""What could come next in a command line that is being typed."""

from __future__ import annotations

import io
import re
from contextlib import redirect_stdout, suppress
from dataclasses import fields, is_dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from vime_core.cli.app import COMMANDS
from vime_core.config.compose import compose
from vime_core.config.location import conf_folder
from vime_core.config.slots import AUTO_CONFIGS, FILE_GROUPS, SEVERAL, SINGLE
from vime_core.errors import VimeError
from vime_core.plugins.kinds import AUTO
from vime_core.plugins.manager import load_plugins
from vime_core.scaffold import KINDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from vime_core.plugins.manager import Plugins

TAKE_SETTINGS = ("train", "config", "plan", "generate", "eval")
"""Commands whose arguments make a configuration."""

ACTIONS = ("list", "show", "check")
"""Of `vime plugins`."""


def candidates(line: str) -> list[str]:
    """Whole words that the last word of the line could become; empty for file names, which shells complete themselves.

    Args:
        line: a command line that begins with `vime`, up to the cursor.
    """
    *before, word = line.replace("\\", "").split()[1:] or [""]
    if line[-1:].isspace():
        before, word = ([*before, word] if word else before), ""
    found = _possible(before, word)
    return sorted({candidate for candidate in found if candidate.startswith(word) and candidate != word})


def _possible(before: Sequence[str], word: str) -> Iterable[str]:
    if not before:
        return COMMANDS
    command, rest = before[0], before[1:]
    if command not in COMMANDS:
        return ()
    if word.startswith("-"):
        return _options(command)
    if command == "new":
        return KINDS if not rest else ()
    if command == "plugins":
        return ACTIONS if not rest else _names_of_plugins(load_plugins())
    return _settings(rest, word) if command in TAKE_SETTINGS else ()


def _options(command: str) -> list[str]:
    """The options that the help of a command tells."""
    told = io.StringIO()
    with redirect_stdout(told), suppress(SystemExit):
        import_module(f"vime_core.cli.{command}").run(["--help"], show_traceback=False)
    return re.findall(r"--[a-z][a-z-]*", told.getvalue())


def _names_of_plugins(plugins: Plugins) -> list[str]:
    return [*(plugin.name for plugin in plugins.loaded), *(item.entry.name for item in plugins.registered)]


def _settings(before: Sequence[str], word: str) -> list[str]:
    plus = re.match(r"\+*", word)[0]  # type: ignore[index]
    key, is_set, value = word.removeprefix(plus).partition("=")
    config = _composed([item for item in before if "=" in item and not item.startswith("-")])
    if not is_set:
        keys = [f"{group}=" for group in (*SINGLE, *SEVERAL, *FILE_GROUPS)]
        keys += _keys(config, key)
        return [f"{plus}{name}" for name in keys]
    chosen = re.match(r"\[?(.*,)?", value)[0]  # type: ignore[index]
    return [f"{plus}{key}={chosen}{option}" for option in _values(config, key)]


def _composed(overrides: Sequence[str]) -> DictConfig:
    """The tree that is configured so far; that of the defaults where this is not right yet, else an empty one."""
    for attempt in (overrides, ()):
        with suppress(VimeError):
            return compose(attempt, require_available=False).typed
    return OmegaConf.create()


def _keys(config: DictConfig, typed: str) -> list[str]:
    """Sections, and the keys in the section that is being typed."""
    section = typed.rpartition(".")[0]
    node = OmegaConf.select(config, section) if section else config
    if not isinstance(node, DictConfig):
        return []
    path = f"{section}." if section else ""
    return [f"{path}{name!s}{'.' if _is_section(node, str(name)) else '='}" for name in node]


def _is_section(node: DictConfig, name: str) -> bool:
    return not OmegaConf.is_missing(node, name) and isinstance(node[name], DictConfig)


def _values(config: DictConfig, key: str) -> list[str]:
    if key in (*SINGLE, *SEVERAL):
        automatic = [AUTO] if key in AUTO_CONFIGS else []
        return [*automatic, *load_plugins().entries(key)]
    if key in FILE_GROUPS:
        folders = [conf_folder(), *load_plugins().conf_folders]
        return [file.stem for folder in folders for file in (folder / key).glob("*.yaml")]
    section, _, name = key.rpartition(".")
    node = OmegaConf.select(config, section) if section else config
    if not isinstance(node, DictConfig) or name not in node:
        return []
    if not OmegaConf.is_missing(node, name) and isinstance(node[name], bool):
        return ["true", "false"]
    return list(_choices(OmegaConf.get_type(node), name))


def _choices(config: Any, name: str) -> tuple[str, ...]:
    metadata = {field.name: field.metadata for field in fields(config)} if is_dataclass(config) else {}
    return tuple(metadata[name].get("choices", ())) if name in metadata else ()
