"""What memory is in this machine, and how much of it is free. Facts only, no policy.

ggml says what this build of llama.cpp can compute on; NVML and sysfs say what is in the machine,
also where the build cannot use it, and know free memory before a driver has taken its share.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gguf_spec.devices.found import FoundGpu
from gguf_spec.devices.host import HostMemory, host_memory
from gguf_spec.devices.nvml import nvml_gpus
from gguf_spec.devices.sysfs import sysfs_gpus
from gguf_spec.gpu_table import describe

if TYPE_CHECKING:
    from gguf_spec import backend

__all__ = ["Device", "FoundGpu", "HostMemory", "Machine", "host_memory", "list_devices", "survey"]

#: Backends of ggml that drive a vendor's GPUs.
BACKENDS = {
    "nvidia": ("CUDA", "Vulkan"),
    "amd": ("ROCm", "HIP", "Vulkan"),
    "intel": ("SYCL", "Vulkan", "OpenVINO"),
    "apple": ("MTL", "Metal"),
}
#: What builds of llama.cpp for these backends have been run by the makers of this program.
TESTED_BACKENDS = ("CPU",)


@dataclass(frozen=True, slots=True)
class Device:
    """Something that this build of llama.cpp computes on.

    ``name`` is ggml's (CUDA0, Vulkan1, MTL0, CPU), ``backend`` the part of ggml that drives it.
    Sizes are in bytes; 0 where a driver does not tell. ``unified``: its memory is the computer's.
    ``bandwidth`` in bytes per second, for known hardware.
    """

    name: str
    description: str
    backend: str
    kind: str
    total: int
    free: int
    unified: bool = False
    bandwidth: int | None = None
    bus: str = ""


@dataclass(frozen=True, slots=True)
class Machine:
    """``unusable`` are GPUs that are in the machine and not in ``devices``; ``backends`` are those
    of this build; ``notes`` say which source did not answer, and why."""

    devices: tuple[Device, ...]
    unusable: tuple[FoundGpu, ...]
    host: HostMemory
    backends: tuple[str, ...]
    notes: tuple[str, ...] = ()


def survey() -> Machine:
    """Look at this machine. Never raises for hardware that does not answer."""
    from gguf_spec import backend

    # NVML first: asking CUDA makes a context that takes hundreds of MiB on every GPU.
    nvidia, note = nvml_gpus()
    found = merge(nvidia, sysfs_gpus())
    host = host_memory()
    devices, unusable = match(backend.list_devices(), found, host)
    notes = (note,) if note and any(gpu.vendor == "nvidia" for gpu in found) else ()
    return Machine(devices, unusable, host, tuple(backend.list_backends()), notes)


def list_devices() -> tuple[Device, ...]:
    """The devices of ``survey``."""
    return survey().devices


def merge(*sources: Iterable[FoundGpu]) -> list[FoundGpu]:
    """All GPUs, each once; what an earlier source knows of one counts, a later one fills gaps."""
    found: dict[str, FoundGpu] = {}
    for index, gpu in enumerate(gpu for source in sources for gpu in source):
        key = gpu.bus or f"#{index}"
        known = found.get(key)
        if known is None:
            found[key] = gpu
        elif known.total is None:
            found[key] = replace(known, total=gpu.total, free=gpu.free)
    return list(found.values())


def match(
    ggml: Sequence[backend.Device], found: Sequence[FoundGpu], host: HostMemory
) -> tuple[tuple[Device, ...], tuple[FoundGpu, ...]]:
    """Put what ggml and the system say of the same GPUs together.

    Returns the devices, and the GPUs that ggml does not have. They are the same where their PCI
    addresses are. Where ggml does not tell an address, the n-th GPU of a vendor is taken for the
    n-th that ggml has of a backend for it, if there are as many.
    """
    devices: list[Device] = []
    used: set[int] = set()
    by_bus = {gpu.bus: index for index, gpu in enumerate(found) if gpu.bus}
    for device in ggml:
        index = by_bus.get(device.bus) if device.bus else _same(device, ggml, found)
        gpu = found[index] if index is not None else None
        if index is not None:
            used.add(index)
        devices.append(_device(device, gpu, host))
    return tuple(devices), tuple(gpu for i, gpu in enumerate(found) if i not in used)


def _same(
    device: backend.Device, ggml: Sequence[backend.Device], found: Sequence[FoundGpu]
) -> int | None:
    """Index in ``found`` of the GPU that is ``device``, by their order."""
    if device.kind not in ("gpu", "igpu"):
        return None
    siblings = [d for d in ggml if d.backend == device.backend and d.kind == device.kind]
    vendors = [name for name, backends in BACKENDS.items() if device.backend in backends]
    candidates = [i for i, gpu in enumerate(found) if gpu.vendor in vendors]
    if len(candidates) != len(siblings):
        return None
    return candidates[siblings.index(device)]


def _device(device: backend.Device, gpu: FoundGpu | None, host: HostMemory) -> Device:
    total, free = device.total, device.free
    unified = device.kind in ("igpu", "cpu") or device.backend in BACKENDS["apple"]
    if device.kind == "cpu":
        # Within a container ggml sees the whole machine's memory.
        total, free = host.total, host.available
    elif gpu is not None and gpu.total and gpu.free is not None and not unified:
        total, free = gpu.total, gpu.free
    known = describe(device.description, total) if device.kind in ("gpu", "igpu") else None
    return Device(
        name=device.name,
        description=device.description,
        backend=device.backend,
        kind=device.kind,
        total=total,
        free=min(free, total),
        unified=unified or bool(known and known.unified),
        bandwidth=known.bandwidth if known else None,
        bus=device.bus,
    )
