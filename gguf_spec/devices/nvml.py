"""NVIDIA's management library: what its driver says of GPUs. Needs the extra ``nvidia``."""

from __future__ import annotations

import contextlib
import importlib
from types import ModuleType
from typing import Any

from gguf_spec.devices.found import FoundGpu

INSTALL = "pip install 'gguf-spec[nvidia]'"


def nvml_gpus(module: ModuleType | None = None) -> tuple[list[FoundGpu], str]:
    """The GPUs, and a note if they could not be asked. ``module`` stands for ``pynvml``.

    Total and free memory are those of the whole card, which other programs use as well.
    """
    try:
        nvml: Any = module or importlib.import_module("pynvml")
    except ImportError:
        return [], f"NVML was not asked: {INSTALL}"
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return [], f"NVML does not answer: {error}"
    try:
        count = nvml.nvmlDeviceGetCount()
        driver = _text(nvml.nvmlSystemGetDriverVersion())
        gpus, notes = [], []
        for index in range(count):
            try:
                gpus.append(_gpu(nvml, index, driver))
            except nvml.NVMLError as error:  # one that has fallen off the bus hides no other
                notes.append(f"NVML does not answer for GPU {index}: {error}")
        return gpus, "; ".join(notes)
    except nvml.NVMLError as error:
        return [], f"NVML does not answer: {error}"
    finally:
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


def _gpu(nvml: Any, index: int, driver: str) -> FoundGpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    bus = bus_address(_text(nvml.nvmlDeviceGetPciInfo(handle).busId))
    name = _text(nvml.nvmlDeviceGetName(handle))
    total: int | None = None
    free: int | None = None
    # Where GPU and CPU share their memory (DGX Spark, Jetson) there is nothing to tell.
    with contextlib.suppress(nvml.NVMLError):
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        total, free = int(memory.total), int(memory.free)
    return FoundGpu("nvml", "nvidia", name, bus, total, free, f"nvidia {driver}", total is None)


def bus_address(text: str) -> str:
    """NVML writes the domain with 8 digits, the kernel with 4."""
    domain, colon, rest = text.lower().partition(":")
    if not colon:
        return text.lower()
    try:
        return f"{int(domain, 16):04x}:{rest}"
    except ValueError:
        return text.lower()


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
