"""What no buffer of libllama accounts for: figures of experience, all labelled as assumed."""

from __future__ import annotations

from gguf_spec.memory.facts import Facts
from gguf_spec.memory.layout import Layout
from gguf_spec.memory.types import CPU, MemoryItem

MIB = 1024 * 1024

#: Bytes that a backend's context, kernels and handles take on each device that is used.
CONTEXT_BYTES = {
    "CUDA": 600 * MIB,  # 300 to 600 MiB, by how many kernels the build carries
    "ROCm": 600 * MIB,
    "MUSA": 600 * MIB,
    "SYCL": 400 * MIB,
    "Vulkan": 128 * MIB,
    "Metal": 64 * MIB,
}
_OTHER = 256 * MIB
#: CUDA's memory pool: dequantized weights for cuBLAS, and the sorting of experts
#: (ggml-cuda.cu:1436-1492, 1965-1970).
POOL_BYTES = {"CUDA": 256 * MIB, "ROCm": 256 * MIB, "MUSA": 256 * MIB}

_PROCESS = 96 * MIB  # the program with its libraries
_PER_TOKEN = 320  # bytes that libllama's vocabulary keeps for a token, merges included


def overhead_items(
    known: Facts, layout: Layout, *, owner: str = "target", process: bool = True
) -> list[MemoryItem]:
    """Contexts of the devices in use and, with ``process``, the program itself."""
    items = []
    if process:
        items.append(_item(CPU, owner, _PROCESS, "the program and its libraries"))
        for device in layout.devices:
            backend = layout.backends[device]
            context = CONTEXT_BYTES.get(backend, _OTHER)
            items.append(_item(device, owner, context, f"{backend}'s context and kernels"))
            pool = POOL_BYTES.get(backend, 0)
            if pool:
                items.append(_item(device, owner, pool, f"{backend}'s memory pool"))
    if known.n_vocab:
        why = f"a vocabulary of {known.n_vocab} tokens in host memory"
        items.append(_item(CPU, owner, _PER_TOKEN * known.n_vocab, why))
    return items


def _item(device: str, owner: str, n_bytes: int, why: str) -> MemoryItem:
    return MemoryItem(device, owner, "overhead", n_bytes, "assumed", why)
