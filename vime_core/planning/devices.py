"""Memory of the devices that runs are planned for."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Device:
    """One kind of device."""

    name: str
    title: str
    memory: int
    """Bytes of one device, as its driver reports them."""
    accelerator: str
    """The accelerator it belongs to."""


KNOWN = {
    device.name: device
    for device in (
        Device("mi300x", "MI300X", 196_592 * MIB, "rocm"),
        Device("mi325x", "MI325X", 262_128 * MIB, "rocm"),
        Device("mi355x", "MI355X", 294_896 * MIB, "rocm"),
        Device("h100", "H100", 81_559 * MIB, "cuda"),
        Device("h200", "H200", 143_771 * MIB, "cuda"),
        Device("b200", "B200", 183_359 * MIB, "cuda"),
    )
}
"""Devices by name. Drivers report less than the number on the box for NVIDIA (80, 141, 192 GB), and the whole of it in
binary units for AMD (192, 256, 288 GB)."""
