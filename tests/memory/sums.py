"""Short cuts for tests of the memory rules."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from gguf_spec.gguf_source import MemorySource
from gguf_spec.header import ModelInfo, parse
from gguf_spec.memory import Device, Hardware, MemoryItem, MemoryParams, Placement, target_items
from tests.memory.models import MODELS

MIB = 1024 * 1024
CPU_ONLY = Hardware()
ONE_GPU = Hardware((Device("GPU0", "CUDA", 24 << 30),))
TWO_GPUS = Hardware((Device("GPU0", "CUDA", 24 << 30), Device("GPU1", "CUDA", 8 << 30)))


@cache
def described(name: str) -> ModelInfo:
    """The header of the described model ``name``, parsed."""
    return parse(MemorySource(MODELS[name]().header(), name))


def summed(items: Iterable[MemoryItem], kind: str | None = None, device: str | None = None) -> int:
    """Bytes of the items of this kind, on this device."""
    return sum(
        item.bytes for item in items if kind in (None, item.kind) and device in (None, item.device)
    )


def bill(
    name: str,
    params: MemoryParams,
    placement: Placement | None = None,
    hardware: Hardware = CPU_ONLY,
) -> list[MemoryItem]:
    return target_items(described(name), params, placement or Placement(), hardware)
