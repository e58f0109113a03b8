"""How a conformance test says what is wrong, and whether an object has the methods of its kind."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Nonconformance(AssertionError):
    """A component does not do what its kind must."""


def require(condition: bool, message: str) -> None:
    """Fail the test unless the condition holds; works under `python -O` too.

    Raises:
        Nonconformance: with the message.
    """
    if not condition:
        raise Nonconformance(message)


def require_equal(found: Any, expected: Any, what: str) -> None:
    """Fail the test unless both are equal.

    Raises:
        Nonconformance: tells both.
    """
    require(found == expected, f"{what} must be {expected!r:.200}, not {found!r:.200}")


def check_interface(component: object, interface: type) -> None:
    """Check that a component has the attributes and methods of its kind and can be called as the core calls it.

    Args:
        component: what the factory made.
        interface: a protocol or base class of `vime_core.plugins.interfaces`.

    Raises:
        Nonconformance: names the attribute or method, and what was expected.
    """
    for owner in interface.__mro__:
        for name in vars(owner).get("__annotations__", {}):
            require(hasattr(component, name), f"attribute {name} is missing")
    for name, specified in methods(interface):
        method = getattr(component, name, None)
        expected = f"{name}{_told(specified)}"
        require(callable(method), f"method {expected} is missing")
        if method is not None:
            _check_method(name, method, specified, expected)


def methods(interface: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The public methods that an interface asks for, those of its bases first."""
    for owner in reversed(interface.__mro__):
        for name, value in vars(owner).items():
            public = not name.startswith("_") or name == "__len__"
            if public and inspect.isfunction(value) and value.__module__.startswith("vime_core"):
                yield name, value


def _check_method(name: str, method: Callable[..., Any], specified: Callable[..., Any], expected: str) -> None:
    asynchronous = inspect.iscoroutinefunction(specified)
    require(
        inspect.iscoroutinefunction(method) == asynchronous,
        f"method {name} must {'' if asynchronous else 'not '}be a coroutine (async def)",
    )
    parameters = list(inspect.signature(specified).parameters.values())[1:]
    positional = [None for item in parameters if item.kind is not inspect.Parameter.KEYWORD_ONLY]
    named = {item.name: None for item in parameters if item.kind is inspect.Parameter.KEYWORD_ONLY}
    required = [None for item in parameters if item.default is inspect.Parameter.empty]
    for arguments, options in ((positional, named), (required, {})):
        try:
            inspect.signature(method).bind(*arguments, **options)
        except TypeError as error:
            raise Nonconformance(f"method {name} cannot be called as {expected}: {error}") from error


def _told(specified: Callable[..., Any]) -> str:
    signature = inspect.signature(specified)
    return str(signature.replace(parameters=list(signature.parameters.values())[1:])).replace("'", "")
