"""Writes docs/reference from the code: `python docs/generate.py`.

A test compares the pages with what this program would write.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import os
import re
import textwrap
import typing
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import omegaconf

from vime_core import errors
from vime_core.cli import main as vime
from vime_core.cli.app import BROKEN_PIPE, COMMANDS, INTERRUPTED
from vime_core.config import schema
from vime_core.config.fields import field_docs
from vime_core.config.slots import SEVERAL, settings_key
from vime_core.config.typed import describe_type
from vime_core.plugins import interfaces
from vime_core.plugins.entries import Entry
from vime_core.plugins.hookcheck import HOOKS
from vime_core.plugins.kinds import HOOK_ENTRIES, config_base
from vime_core.plugins.manager import load_plugins
from vime_core.run.metrics import METRICS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from vime_core.plugins.registration import Registered

FOLDER = Path(__file__).with_name("reference")

NOTE = "<!-- Written by docs/generate.py; change the code and run it again. -->"

OWN_DISTRIBUTIONS = frozenset(
    f"vime-{name}" for name in ("core", "grpo", "qwen3", "math-verifier", "megatron", "vllm", "rocm")
)
"""Whose components are listed, whatever else is installed."""

HELP_COLUMNS = "100"


def hooks_page() -> str:
    """Every hook with its documentation."""
    lines = [
        "# Hooks",
        "",
        "A plugin is a module that an entry point of group `vime` names. It implements any of these hooks with",
        "`@vime_core.hookimpl`; each returns [entries](entries.md) and is called once, when plugins are loaded.",
        "",
    ]
    for name, function in HOOKS.items():
        entry = HOOK_ENTRIES[name].__name__
        lines += [f"## {name}", "", "```python", f"def {name}() -> Iterable[{entry}]", "```", ""]
        lines += [_markdown(inspect.getdoc(function)), "", f"Entry: [`{entry}`](entries.md#{entry.lower()})", ""]
    return _page(lines)


def entries_page() -> str:
    """Every entry class, the interface behind its factory, and the components there are."""
    lines = ["# Entries", "", _markdown(inspect.getdoc(Entry)), "", "## All entries", "", *_field_table(Entry), ""]
    components = _own_components()
    for entry in HOOK_ENTRIES.values():
        lines += [f"## {entry.__name__}", "", f"Kind: {entry.kind}; chosen with `{entry.group}=`.", ""]
        lines += [_markdown(inspect.getdoc(entry)), ""]
        own = [item for item in fields(entry) if item.name not in {base.name for base in fields(Entry)}]
        lines += [*_field_table(entry, [item.name for item in own]), ""] if own else []
        base = config_base(entry)
        lines += [f"Settings derive from `{base.__module__}.{base.__name__}`.", ""]
        lines += _interface(entry)
        rows = [
            (
                f"`{item.entry.name}`",
                item.entry.summary,
                item.plugin.distribution,
                ", ".join(item.entry.requires) or "-",
            )
            for item in components
            if isinstance(item.entry, entry)
        ]
        lines += [*_table(("name", "what it is", "distribution", "modules it needs"), rows), ""] if rows else []
    return _page(lines)


def config_page() -> str:
    """Every key with type, default, limits and meaning."""
    lines = [
        "# Configuration",
        "",
        "`vime config` prints the tree of a run and where each value came from. Keys that are not listed here are",
        "errors.",
        "",
        "## The run",
        "",
    ]
    sections = typing.get_type_hints(schema.Config)
    plain = [item.name for item in fields(schema.Config) if not is_dataclass(sections[item.name])]
    lines += [*_keys_table(schema.Config, "", [name for name in plain if name not in _several_sections()]), ""]
    for item in fields(schema.Config):
        section = sections[item.name]
        if isinstance(section, type) and is_dataclass(section) and item.default is MISSING:
            lines += [f"## {item.name}", "", _markdown(inspect.getdoc(section)), ""]
            lines += [*_keys_table(section, f"{item.name}."), ""]
    lines += ["## evals", "", _markdown(inspect.getdoc(schema.EvalSetConfig)), ""]
    lines += [*_keys_table(schema.EvalSetConfig, "evals.<name>."), ""]
    for entry in HOOK_ENTRIES.values():
        lines += _kind_section(entry)
    return _page(lines)


def metrics_page() -> str:
    """Every metric with its meaning."""
    lines = [
        "# Metrics",
        "",
        "The keys of `metrics.jsonl`, one object a step; `null` stands for a number that is not finite, `<name>` for",
        "any name. Algorithms, filters and rollout functions may add keys of their own.",
        "",
    ]
    lines += _table(("key", "meaning"), [(f"`{key}`", text) for key, text in METRICS.items()])
    return _page(lines)


def cli_page() -> str:
    """The help of every command."""
    lines = ["# Command line", "", "```text", _help([]), "```", ""]
    for command, summary in COMMANDS.items():
        lines += [f"## vime {command}", "", f"{summary[0].upper()}{summary[1:]}.", ""]
        lines += ["```text", _help([command]), "```", ""]
    statuses = [
        ("0", "done"),
        ("1", "the run could not go on; the line on standard error says why"),
        ("2", "the user can mend it; the line on standard error says how"),
        (str(INTERRUPTED), "interrupted by Ctrl-C or SIGTERM, in order"),
        (str(BROKEN_PIPE), "the reader of the output has gone"),
    ]
    return _page([*lines, "## Exit status", "", *_table(("status", "meaning"), statuses)])


def errors_page() -> str:
    """Every error that a user can see."""
    lines = [
        "# Errors",
        "",
        "Each is told in one line: what, where, and what to do. `--traceback` shows where it came from.",
        "",
    ]
    classes = [
        value for value in vars(errors).values() if inspect.isclass(value) and issubclass(value, errors.VimeError)
    ]
    rows = [
        (f"`{value.__name__}`", str(value.exit_code), f"`{value.__base__.__name__}`", _markdown(inspect.getdoc(value)))
        for value in classes
        if value.__base__ is not None
    ]
    return _page([*lines, *_table(("error", "exit status", "is a", "meaning"), rows)])


PAGES: Mapping[str, Callable[[], str]] = {
    "hooks.md": hooks_page,
    "entries.md": entries_page,
    "config.md": config_page,
    "metrics.md": metrics_page,
    "cli.md": cli_page,
    "errors.md": errors_page,
}


def _kind_section(entry: type[Entry]) -> list[str]:
    """The settings that all components of a kind have, then those that each adds."""
    base = config_base(entry)
    several = entry.group in SEVERAL
    key = settings_key(entry.group, "<name>")
    chosen = f"`{entry.group}=[<name>, ...]`" if several else f"`{entry.group}=<name>`"
    lines = [
        f"## {entry.group}",
        "",
        f"Chosen with {chosen}. Every {entry.kind} has:",
        "",
        *_keys_table(base, f"{key}."),
        "",
    ]
    for item in _own_components():
        if isinstance(item.entry, entry):
            names = _changed(item.entry.config, base)
            lines += [f"### {entry.group}={item.entry.name}", "", _about(item.entry, base), ""]
            prefix = f"{settings_key(entry.group, item.entry.name)}."
            lines += [*_keys_table(item.entry.config, prefix, names), ""] if names else []
    return lines


def _about(entry: Entry, base: type) -> str:
    return f"{entry.summary}." if entry.config is base else _markdown(inspect.getdoc(entry.config))


def _changed(config: type, base: type) -> list[str]:
    """Fields that the base does not have, or that have another default; the name aside."""
    known = {item.name: _default(item) for item in fields(base)}
    return [item.name for item in fields(config) if item.name != "name" and known.get(item.name) != _default(item)]


def _several_sections() -> set[str]:
    return {*SEVERAL.values(), "evals"} | {item.name for item in fields(schema.Config) if item.name in _single_groups()}


def _single_groups() -> set[str]:
    return {entry.group for entry in HOOK_ENTRIES.values() if entry.group not in SEVERAL}


def _keys_table(config: type, prefix: str, names: Iterable[str] | None = None) -> list[str]:
    hints, docs = typing.get_type_hints(config), field_docs(config)
    rows = [
        (
            f"`{prefix}{item.name}`",
            describe_type(hints[item.name]),
            _default(item),
            _limits(item.metadata) or "-",
            _markdown(docs.get(item.name)),
        )
        for item in fields(config)
        if names is None or item.name in names
    ]
    return _table(("key", "type", "default", "limits", "meaning"), rows)


def _field_table(config: type, names: Iterable[str] | None = None) -> list[str]:
    docs = field_docs(config)
    rows = [
        (f"`{item.name}`", f"`{item.type}`", _default(item), _markdown(docs.get(item.name)))
        for item in fields(config)
        if names is None or item.name in names
    ]
    return _table(("field", "type", "default", "meaning"), rows)


def _default(item: Any) -> str:
    value = item.default if item.default_factory is MISSING else item.default_factory()
    if value is MISSING or value == omegaconf.MISSING:
        return "required"
    if is_dataclass(value):
        return "-"
    shown = (
        {None: "null", True: "true", False: "false"}.get(value) if value is None or isinstance(value, bool) else None
    )
    if isinstance(value, frozenset):
        shown = ", ".join(sorted(value))
    return f"`{shown or value}`"


def _limits(metadata: Mapping[str, Any]) -> str:
    if metadata.get("choices"):
        return "one of " + ", ".join(f"`{choice}`" for choice in metadata["choices"])
    words = {"low": "at least", "above": "more than", "high": "at most", "below": "less than"}
    return ", ".join(f"{words[name]} {metadata[name]:g}" for name in words if metadata.get(name) is not None)


def _interface(entry: type[Entry]) -> list[str]:
    """The class that the factory of an entry makes, and its methods."""
    match = re.match(r"Factory: `(\w+)\(", inspect.getdoc(entry) or "")
    if match is None:
        raise ValueError(f"the docstring of {entry.__name__} must begin with `Factory: ` and what it makes")
    protocol = getattr(interfaces, match[1])
    lines = [f"`{protocol.__name__}`: {_markdown(inspect.getdoc(protocol))}", ""]
    rows = [
        (f"`{name}{_signature(method)}`", _markdown((inspect.getdoc(method) or "").split("\n\n")[0]))
        for name, method in _methods(protocol)
    ]
    return [*lines, *_table(("method", "what it does"), rows), ""]


def _methods(protocol: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    for owner in reversed(protocol.__mro__):
        for name, value in vars(owner).items():
            public = not name.startswith("_") or name == "__len__"
            # typing puts an __init__ of its own into protocols.
            if public and inspect.isfunction(value) and value.__module__.startswith("vime_core"):
                yield name, value


def _signature(method: Callable[..., Any]) -> str:
    signature = inspect.signature(method)
    parameters = [item for name, item in signature.parameters.items() if name != "self"]
    return str(signature.replace(parameters=parameters)).replace("'", "")


def _own_components() -> list[Registered]:
    found = [item for item in load_plugins().registered if item.plugin.distribution in OWN_DISTRIBUTIONS]
    return sorted(found, key=lambda item: (item.entry.group, item.entry.name))


def _help(command: list[str]) -> str:
    output = io.StringIO()
    environment = mock.patch.dict(os.environ, {"COLUMNS": HELP_COLUMNS, "NO_COLOR": "1"})
    with environment, contextlib.redirect_stdout(output), contextlib.suppress(SystemExit):
        vime([*command, "--help"])
    return output.getvalue().rstrip()


def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    lines = [heads, tuple("---" for _ in heads), *rows]
    return ["| " + " | ".join(map(_cell, line)) + " |" for line in lines]


def _cell(text: str) -> str:
    """Text in a cell: on one line, without what Markdown would take for a column or for HTML."""
    parts = " ".join(text.split()).replace("|", "\\|").split("`")
    return "`".join(part if number % 2 else part.replace("<", "&lt;") for number, part in enumerate(parts))


def _markdown(text: str | None) -> str:
    """A docstring as Markdown: sections of Google style become paragraphs, an example a block of code."""
    text = re.sub(r"^(Raises|Returns|Args):\n", r"**\1:**\n\n", text or "", flags=re.MULTILINE)
    text = re.sub(r"^Example:\n((?:    .*\n?|\n)+)", _code_block, text, flags=re.MULTILINE)
    return re.sub(r"^    (\w+): ", r"- `\1`: ", text, flags=re.MULTILINE)


def _code_block(match: re.Match[str]) -> str:
    return f"```python\n{textwrap.dedent(match[1]).rstrip()}\n```"


def _page(lines: Iterable[str]) -> str:
    return NOTE + "\n\n" + "\n".join(lines).rstrip() + "\n"


def main() -> None:
    """Write all pages."""
    FOLDER.mkdir(exist_ok=True)
    for name, write in PAGES.items():
        (FOLDER / name).write_text(write(), encoding="utf-8")


if __name__ == "__main__":
    main()
