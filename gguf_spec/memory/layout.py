"""Which device a layer belongs to, and how much of it a tensor takes there."""

from __future__ import annotations

import ctypes
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from gguf_spec.errors import UsageError
from gguf_spec.gguf_types import TENSOR_TYPES
from gguf_spec.memory.types import CPU, Device, Hardware, Placement, Source

CPU_ALIGNMENT = 32  # TENSOR_ALIGNMENT, ggml-impl.h:44
_BLOCKS = {tensor_type.name: tensor_type for tensor_type in TENSOR_TYPES.values()}
_ROW_PADDING = 512  # MATRIX_ROW_PADDING, ggml-cuda/common.cuh:186


@dataclass(frozen=True, slots=True)
class Storage:
    """How a backend's buffers hold tensors: padded to ``alignment`` bytes, and the rows of
    quantized ones to ``row_padding`` elements. ``exact``: these numbers were read in its source."""

    alignment: int = CPU_ALIGNMENT
    row_padding: int = 0
    exact: bool = True

    @property
    def source(self) -> Source:
        return "exact" if self.exact else "formula"

    def size(self, type_name: str, row: int, n_bytes: int) -> int:
        """Bytes that a tensor with rows of ``row`` elements takes (ggml-alloc.c:1178-1184)."""
        if self.row_padding and row % self.row_padding:
            block = _BLOCKS[type_name]
            if block.block > 1:  # ggml_is_quantized
                missing = self.row_padding - row % self.row_padding
                n_bytes += missing // block.block * block.n_bytes
        return -(-n_bytes // self.alignment) * self.alignment


#: ggml-cuda.cu:897-920 (also ROCm's and MUSA's code), ggml-metal.cpp:269, ggml-sycl.cpp:1021-1040.
#: Vulkan takes the driver's minStorageBufferOffsetAlignment: 16 to 256 bytes.
STORAGE = {
    CPU: Storage(),
    "CUDA": Storage(128, _ROW_PADDING),
    "ROCm": Storage(128, _ROW_PADDING),
    "MUSA": Storage(128, _ROW_PADDING),
    "SYCL": Storage(128, _ROW_PADDING),
    "Metal": Storage(32),
    "Vulkan": Storage(256, exact=False),
}
_OTHER = Storage(256, exact=False)


def storage(backend: str) -> Storage:
    """How the backend called ``backend`` stores tensors; a cautious guess for unknown ones."""
    return STORAGE.get(backend, _OTHER)


@dataclass(frozen=True, slots=True)
class Layout:
    """``layers`` has the device of each layer, MTP layers included; ``output`` of the output.

    ``devices`` are those in use besides the CPU, with or without layers: libllama opens a backend
    on each of them (llama-context.cpp:333-342), and computes large batches there (op_offload).
    """

    layers: tuple[str, ...]
    output: str
    devices: tuple[str, ...]
    backends: dict[str, str]

    def storage(self, device: str) -> Storage:
        return storage(self.backends[device])


def cpu_repack(system_info: str) -> str:
    """Which set of types the CPU backend repacks, told from ``llama_print_system_info``; empty if
    it repacks none (ggml-cpu/repack.cpp:4974-5130)."""
    has = {part.split(" = ")[0].split(" : ")[-1] for part in system_info.split(" | ")
           if part.rstrip().endswith("= 1")}  # fmt: skip
    if "REPACK" not in has:
        return ""
    if "AVX512" in has:
        return "avx512"
    if "AVX2" in has:
        return "avx2"
    return "neon" if "NEON" in has and has & {"DOTPROD", "MATMUL_INT8"} else ""


def used_devices(placement: Placement, hardware: Hardware) -> list[Device]:
    """The devices that layers may go to.

    Raises:
        UsageError: the placement names a device that the hardware has not.
    """
    if placement.devices is None:
        return list(hardware.devices)
    by_name = {device.name: device for device in hardware.devices}
    unknown = [name for name in placement.devices if name not in by_name]
    if unknown:
        names = ", ".join(by_name) or "none"
        raise UsageError(f"there is no device {unknown[0]!r}", hint=f"devices: {names}")
    return [by_name[name] for name in placement.devices]


def layout(n_layer_all: int, placement: Placement, hardware: Hardware) -> Layout:
    """Assign layers to devices as llama-model.cpp:1556-1623 does.

    ``n_gpu_layers`` counts from the end, the output being the last "layer". With several devices
    the layers are cut at the shares of ``tensor_split``, or of the devices' free memory.

    Raises:
        UsageError: an unknown device, or another number of shares than devices.
    """
    devices = used_devices(placement, hardware)
    backends = {CPU: CPU} | {device.name: device.backend for device in hardware.devices}
    wanted = placement.n_gpu_layers
    n_gpu = n_layer_all + 1 if wanted < 0 else wanted
    active = min(n_gpu, n_layer_all + 1) if devices else 0
    start = max(n_layer_all + 1 - n_gpu, 0)
    cuts = _cuts(devices, placement.tensor_split)

    def device_of(layer: int) -> str:
        if layer < start or layer - start >= active:
            return CPU
        at = bisect_right(cuts, _single((layer - start) / active))
        return devices[min(at, len(devices) - 1)].name

    return Layout(
        layers=tuple(device_of(layer) for layer in range(n_layer_all)),
        output=device_of(n_layer_all),
        devices=tuple(device.name for device in devices),
        backends=backends,
    )


def _cuts(devices: Sequence[Device], split: Sequence[float]) -> list[float]:
    """Cumulated shares, in the single precision that llama.cpp cuts with."""
    if split and len(split) != len(devices) and any(split):
        raise UsageError(f"{len(split)} shares of a split for {len(devices)} devices")
    shares = list(split) if any(split) else [float(device.free) for device in devices]
    if not any(shares):  # nothing is known about the devices: equal shares
        shares = [1.0] * len(devices)
    total, sums = 0.0, []
    for share in shares:
        total = _single(total + _single(share))
        sums.append(total)
    return [_single(value / total) for value in sums]


def _single(value: float) -> float:
    return ctypes.c_float(value).value
