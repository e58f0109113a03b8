"""Describes the public API in text: `python tests/api/public_api.py` writes `public_api.txt` anew."""

import inspect
from dataclasses import fields, is_dataclass
from pathlib import Path

import vime_core

FILE = Path(__file__).with_name("public_api.txt")


def describe() -> str:
    """One line for each public name, and one for each method of a class."""
    lines = []
    for name in vime_core.__all__:
        lines += described(name, getattr(vime_core, name))
    return "\n".join([*lines, ""])


def described(name, value):
    if not inspect.isclass(value):
        return [f"{name}{_signature(value)}"]
    bases = ", ".join(base.__name__ for base in value.__bases__ if base is not object)
    lines = [f"class {name}({bases})"]
    if is_dataclass(value):
        lines += [f"  {item.name}: {item.type} = {_default(item)}" for item in fields(value)]
    for method, function in vars(value).items():
        public = not method.startswith("_") or method == "__len__"
        if public and inspect.isfunction(function) and function.__module__.startswith("vime_core"):
            asynchronous = "async " if inspect.iscoroutinefunction(function) else ""
            lines.append(f"  {asynchronous}{method}{_signature(function)}")
        elif public and isinstance(function, property):
            lines.append(f"  {method} (property)")
    annotations = {} if is_dataclass(value) else vars(value).get("__annotations__", {})
    return lines + [f"  {attribute}: {kind}" for attribute, kind in annotations.items()]


def _signature(function):
    try:
        return str(inspect.signature(function)).replace("'", "")
    except TypeError:
        return ""


def _default(item):
    from dataclasses import MISSING

    if item.default_factory is not MISSING:
        return f"{item.default_factory.__name__}()"
    if isinstance(item.default, frozenset):
        return str(sorted(item.default))
    return "required" if item.default is MISSING else repr(item.default)


if __name__ == "__main__":
    FILE.write_text(describe())
