"""The machine to plan for: this one as it is, or one described by sizes or by its GPUs' names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from gguf_spec import memory
from gguf_spec.devices import Device, HostMemory, host_memory, survey
from gguf_spec.errors import InputError, UsageError
from gguf_spec.gpu_table import Gpu as KnownGpu
from gguf_spec.gpu_table import describe
from gguf_spec.planning.machine import Gpu, Host, Machine

GIB = 1 << 30
DEFAULT_RESERVE = GIB  # bytes that stay free on every device
#: Of a host the reserve is no more than this part: a small container shall still run small models.
_HOST_PART = 16
#: The backend that drives a maker's GPUs, whose rules the bill follows.
_BACKENDS = {"nvidia": "CUDA", "amd": "ROCm", "intel": "SYCL", "apple": "Metal"}
#: ggml's names for backends, where the memory rules have another.
_RULES = {"MTL": "Metal", "HIP": "ROCm"}


@dataclass(frozen=True, slots=True)
class Limits:
    """What of a machine may be used, in bytes. None: what there is."""

    vram: tuple[int, ...] | None = None
    ram: int | None = None
    reserve: int | None = None

    @property
    def reserved(self) -> int:
        return DEFAULT_RESERVE if self.reserve is None else self.reserve


def this_machine(
    limits: Limits, *, devices: Sequence[str] | None = None, mapped: bool = True
) -> Machine:
    """The devices here, or of them those called ``devices``; ``limits.vram`` bounds their memory,
    one size each or one for all.

    As in llama.cpp a GPU that shares the host's memory counts only where there is no other.

    Raises:
        InputError: there is no such device.
    """
    machine = survey()
    gpus = [device for device in machine.devices if device.kind == "gpu"]
    gpus = gpus or [device for device in machine.devices if device.kind == "igpu"]
    if devices is not None:
        known = {d.name: d for d in machine.devices if d.kind != "cpu"}
        unknown = [name for name in devices if name not in known]
        if unknown:
            names = ", ".join(known) or "none (this build computes on the CPU)"
            raise InputError(
                f"there is no device {', '.join(unknown)} to offload to",
                hint=f"devices here: {names}",
            )
        gpus = [known[name] for name in devices]
    planned = tuple(
        _gpu(device, _bound(limits, i), limits.reserved) for i, device in enumerate(gpus)
    )
    return Machine(_host(machine.host, limits, alone=not planned), planned, cpu_repack(), mapped)


def sized_machine(limits: Limits) -> Machine:
    """A machine with GPUs of the sizes ``limits.vram``, and CUDA's rules for them."""
    gpus = tuple(
        Gpu(f"CUDA{i}", "CUDA", size, size, max(size - limits.reserved, 0))
        for i, size in enumerate(limits.vram or ())
        if size
    )
    return Machine(_other_host(limits, alone=not gpus), gpus)


def named_machine(known: Sequence[KnownGpu], limits: Limits) -> Machine:
    """A machine with GPUs from the table, idle.

    Raises:
        UsageError: one of several GPUs is part of a computer with unified memory.
    """
    if any(gpu.unified for gpu in known) and len(known) > 1:
        raise UsageError("a GPU that shares the computer's memory is alone in it")
    counts: dict[str, int] = {}
    gpus = []
    for gpu in known:
        backend = _BACKENDS.get(gpu.vendor, "Vulkan")
        number = counts[backend] = counts.get(backend, -1) + 1
        usable = _working_set(gpu.memory) if gpu.vendor == "apple" else gpu.memory
        name = "MTL" if backend == "Metal" else backend
        budget = max(usable - limits.reserved, 0)
        gpus.append(
            Gpu(
                f"{name}{number}", backend, gpu.memory, usable, budget,
                gpu.bandwidth, gpu.share, gpu.unified,
            )
        )  # fmt: skip
    return Machine(_other_host(limits, alone=False), tuple(gpus))


def _bound(limits: Limits, index: int) -> int | None:
    """The size that bounds a device: its own, or the one there is for all; a device more than
    there are sizes is not used."""
    if limits.vram is None:
        return None
    if len(limits.vram) == 1:
        return limits.vram[0]
    return limits.vram[index] if index < len(limits.vram) else 0


def _gpu(device: Device, vram: int | None, reserve: int) -> Gpu:
    known = describe(device.description, device.total)
    free = device.free if vram is None else min(vram, device.total or vram)
    return Gpu(
        device.name,
        _RULES.get(device.backend, device.backend),
        device.total,
        device.free,
        max(free - reserve, 0),
        device.bandwidth,
        known.share if known is not None else 0.0,
        device.unified,
    )


def _working_set(memory: int) -> int:
    """What macOS lets a GPU use of the computer's memory: recommendedMaxWorkingSetSize."""
    return memory * 3 // 4 if memory > 36 * GIB else memory * 2 // 3


def _host(memory: HostMemory, limits: Limits, *, alone: bool) -> Host:
    if limits.ram is not None:
        return _idle(limits.ram, limits, alone=alone)
    total = memory.total
    return Host(total, memory.available, max(total - _host_reserve(total, limits, alone), 0))


def _other_host(limits: Limits, *, alone: bool) -> Host:
    """The host of another machine: as large as this one, unless somebody says."""
    return _idle(host_memory().total if limits.ram is None else limits.ram, limits, alone=alone)


def _idle(total: int, limits: Limits, *, alone: bool) -> Host:
    return Host(total, total, max(total - _host_reserve(total, limits, alone), 0))


def _host_reserve(total: int, limits: Limits, alone: bool) -> int:
    """What stays free of host memory: where it is the one memory to plan with, what was asked."""
    if alone and limits.reserve is not None:
        return limits.reserve
    return min(limits.reserved, total // _HOST_PART)


@cache
def cpu_repack() -> str:
    """Which types of weights the CPU backend here repacks: see ``memory.Hardware``."""
    from gguf_spec.backend import system_info

    return memory.cpu_repack(system_info())
