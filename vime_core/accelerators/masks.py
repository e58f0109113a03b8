"""Visible-device variables: reading those that are set already."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from vime_core.errors import ResourceError

if TYPE_CHECKING:
    from collections.abc import Mapping

INDEX = re.compile(r"\d+")
IDENTIFIER = re.compile(r"(GPU|MIG)-[0-9A-Za-z-/]+")


def read_mask(environment: Mapping[str, str], variable: str, *, identifiers: bool = True) -> tuple[str, ...] | None:
    """The devices that a variable lists, in its order; None when it is not set.

    Args:
        environment: of the process.
        variable: its name.
        identifiers: whether a device may be given as `GPU-...` instead of by number.

    Raises:
        ResourceError: when it lists no device, one twice, or something else.
    """
    value = environment.get(variable)
    if value is None:
        return None
    devices = tuple(item.strip() for item in value.split(","))
    if devices in (("",), ("-1",)):
        raise ResourceError(f"{variable}={value} hides every device: unset it, or list those that the run may use")
    for device in devices:
        if not INDEX.fullmatch(device) and not (identifiers and IDENTIFIER.fullmatch(device)):
            known = "numbers from 0" + (" or GPU-<uuid>" if identifiers else "")
            raise ResourceError(f"{variable}={value}: {device!r} is no device; list {known}, separated by commas")
    if len(set(devices)) < len(devices):
        raise ResourceError(f"{variable}={value} lists a device twice: each process needs one of its own")
    return devices


def check_numbers(variable: str, devices: tuple[str, ...], count: int, owner: str) -> None:
    """Check that the numbers in a mask are those of devices that are there.

    Args:
        variable: the mask.
        devices: what it lists.
        count: devices that it can choose from, numbered from 0.
        owner: who says how many there are.

    Raises:
        ResourceError: names the variable and the first number that is too large.
    """
    for device in devices:
        if INDEX.fullmatch(device) and int(device) >= count:
            numbered = "none" if count == 0 else "only 0" if count == 1 else f"0 to {count - 1}"
            raise ResourceError(f"{variable}={','.join(devices)}: there is no device {device}; {owner} has {numbered}")
