"""A GPU as the operating system or its driver knows it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FoundGpu:
    """``source`` is nvml or sysfs; ``vendor`` nvidia, amd or intel; ``bus`` the PCI address as in
    0000:c1:00.0. Sizes in bytes, None where nobody tells. ``driver``: the kernel's driver that has
    it, "" for none."""

    source: str
    vendor: str
    name: str
    bus: str
    total: int | None = None
    free: int | None = None
    driver: str = ""
    integrated: bool = False
