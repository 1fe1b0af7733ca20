"""What is loaded beside a target: LoRA adapters and the projector of a multimodal model."""

from __future__ import annotations

from collections import defaultdict

from gguf_spec.gguf_reader import TensorInfo
from gguf_spec.header import ModelInfo
from gguf_spec.memory.facts import facts
from gguf_spec.memory.layout import Layout, storage
from gguf_spec.memory.types import CPU, LOWER_BOUND, Device, MemoryItem
from gguf_spec.memory.weights import device_of, tensor_bytes


def lora_items(adapter: ModelInfo, target: ModelInfo, where: Layout) -> list[MemoryItem]:
    """Weights of a LoRA adapter: every pair of matrices lies where the tensor lies that it changes
    (llama-adapter.cpp:318-372)."""
    known = facts(target)
    sums: defaultdict[str, int] = defaultdict(int)
    for tensor in adapter.tensors:
        base = tensor.name.removesuffix(".lora_a").removesuffix(".lora_b")
        device = device_of(base, known, where) or CPU
        sums[device] += tensor_bytes(tensor, where.storage(device))
    why = "matrices of the adapter, beside the tensors they change (llama-adapter.cpp:318-372)"
    return [
        MemoryItem(device, "lora", "weights", n_bytes, where.storage(device).source, why)
        for device, n_bytes in sorted(sums.items())
    ]


def mmproj_items(projector: ModelInfo, device: Device | None = None) -> list[MemoryItem]:
    """A projector on ``device``, which mtmd puts on one device as a whole, or on the CPU.

    Its compute buffer depends on the size of the images, which nobody knows before they come: the
    patches of one picture, through the widest layer, are a lower bound.
    """
    name, backend = (device.name, device.backend) if device is not None else (CPU, CPU)
    where = storage(backend)
    weights = sum(tensor_bytes(tensor, where) for tensor in projector.tensors)
    patches = _patches(projector)
    widest = max((_width(tensor) for tensor in projector.tensors), default=0)
    why = f"{LOWER_BOUND}a picture of {patches} patches through layers {widest} wide"
    return [
        MemoryItem(
            name, "mmproj", "weights", weights, where.source, "all tensors of the projector"
        ),
        MemoryItem(name, "mmproj", "compute", 4 * 4 * patches * widest, "assumed", why),
    ]


def _patches(projector: ModelInfo) -> int:
    image = projector.uint("clip.vision.image_size") or 0
    patch = projector.uint("clip.vision.patch_size") or 0
    return (image // patch) ** 2 if image > 0 and patch > 0 else 0


def _width(tensor: TensorInfo) -> int:
    return max(tensor.shape[:2]) if len(tensor.shape) == 2 else 0
