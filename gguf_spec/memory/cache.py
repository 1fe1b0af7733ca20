"""Keys, values and recurrent states: what a context keeps, by device.

The rules of src/llama-kv-cache.cpp, llama-kv-cache-iswa.cpp, llama-memory-recurrent.cpp and of
``create_memory`` in llama-model.cpp, as vendored in llama-cpp-python 0.3.36.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from gguf_spec.errors import UsageError
from gguf_spec.gguf_types import TENSOR_TYPES
from gguf_spec.memory.architectures import ENCODER, RECURRENT
from gguf_spec.memory.facts import Facts
from gguf_spec.memory.layout import Layout
from gguf_spec.memory.limits import fitting_snapshots
from gguf_spec.memory.types import CPU, LOWER_BOUND, MemoryItem, MemoryParams

#: Cache types -> (elements of a block, its bytes): kv_cache_types in common/arg.cpp.
KV_TYPES = {
    kind.name.lower(): (kind.block, kind.n_bytes)
    for kind in TENSOR_TYPES.values()
    if kind.name in ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "IQ4_NL", "Q5_0", "Q5_1")
}


@dataclass(frozen=True, slots=True)
class ContextSize:
    """The numbers a context settles for: llama-context.cpp:105-110, 245-252, 289-306.

    ``n_ctx`` cells in all, ``n_ctx_seq`` of them in each of ``n_stream`` streams.
    """

    n_ctx: int
    n_ctx_seq: int
    n_stream: int
    n_batch: int
    n_ubatch: int
    n_outputs_max: int
    n_rs_seq: int


def context_size(known: Facts, params: MemoryParams) -> ContextSize:
    """What libllama makes of ``params``."""
    n_ctx = params.n_ctx or known.n_ctx_train
    n_batch = min(n_ctx, params.n_batch)  # before n_ctx is padded
    n_ubatch = min(n_batch, params.n_ubatch or params.n_batch)
    padded = _pad(n_ctx, 256)
    n_seq = max(1, params.n_seq_max)
    n_ctx_seq = padded if params.kv_unified else _pad(padded // n_seq, 256)
    n_outputs = params.n_outputs_max
    if n_outputs == 0 or known.arch in ENCODER:
        n_outputs = n_batch
    return ContextSize(
        n_ctx=padded if params.kv_unified else n_ctx_seq * n_seq,
        n_ctx_seq=n_ctx_seq,
        n_stream=1 if params.kv_unified else n_seq,
        n_batch=n_batch,
        n_ubatch=n_ubatch,
        n_outputs_max=n_outputs,
        n_rs_seq=fitting_snapshots(params.n_rs_seq, n_ubatch) if known.rollback else 0,
    )


def swa_cells(known: Facts, params: MemoryParams, size: ContextSize) -> int:
    """Cells of a sliding-window cache in each stream: llama-kv-cache-iswa.cpp:69-81."""
    if params.swa_full:
        return size.n_ctx_seq
    window = known.window * (params.n_seq_max if params.kv_unified else 1)
    return _pad(min(size.n_ctx_seq, window + size.n_ubatch), 256)


def kv_layers(known: Facts, params: MemoryParams) -> list[int]:
    """The layers that have keys and values in this context: the filters of ``create_memory``."""
    if not known.cached or known.arch in RECURRENT or known.arch == "gemma4-assistant":
        return []  # an assistant looks at its target's cache (llama-model.cpp:2806-2837)
    layers = [il for il in range(known.n_layer_all) if known.attends[il]]
    if known.n_layer == 0 or known.n_layer == known.n_layer_all:
        return layers
    if params.mtp_context:
        return list(range(known.n_layer, known.n_layer_all))
    return [il for il in layers if il < known.n_layer or _keeps_mtp_layers(known, il)]


def _keeps_mtp_layers(known: Facts, layer: int) -> bool:
    """Hybrids without a filter of their own give the MTP layers a cache in the main context, too
    (llama-memory-hybrid.cpp:46, llama-model.cpp:2706-2712)."""
    return known.arch in ("bailingmoe3", "nemotron_h", "nemotron_h_moe") and known.attends[layer]


def cache_items(
    known: Facts, params: MemoryParams, layout: Layout, *, owner: str = "target"
) -> list[MemoryItem]:
    """Keys, values and recurrent states of one context, an item for each device and kind."""
    size = context_size(known, params)
    items = _kv_items(known, params, size, layout, owner)
    if known.hybrid or known.arch in RECURRENT:
        items += _state_items(known, params, size, layout, owner)
    if not known.known:
        return [_labelled(item, known) for item in items] or [
            MemoryItem(
                CPU, owner, "kv_cache", 0, "assumed",
                f"{LOWER_BOUND}what {known.label} keeps in its cache is not known",
            )
        ]  # fmt: skip
    return items


def _labelled(item: MemoryItem, known: Facts) -> MemoryItem:
    return MemoryItem(
        item.device,
        item.owner,
        item.kind,
        item.bytes,
        "assumed",
        f"{LOWER_BOUND}{known.label} is not fully known; {item.why}",
    )


def _kv_items(
    known: Facts, params: MemoryParams, size: ContextSize, layout: Layout, owner: str
) -> list[MemoryItem]:
    layers = kv_layers(known, params)
    sums: defaultdict[str, int] = defaultdict(int)
    cells_swa = swa_cells(known, params, size) if known.window else 0
    for layer in layers:
        device = layout.layers[layer] if params.offload_kqv else CPU
        windowed = known.window and known.windowed[layer]
        cells = (cells_swa if windowed else size.n_ctx_seq) * size.n_stream
        pad = layout.storage(device).size
        for type_name, width in kv_widths(known, params, layer):
            n_bytes = row_bytes(type_name, width) * cells
            sums[device] += pad(type_name.upper(), width, n_bytes)
    why = _kv_why(known, params, size, cells_swa)
    return [
        MemoryItem(
            device, owner, "kv_cache", n_bytes, layout.storage(device).source,
            f"{_count(layers, layout, device, params)} layers, {why}",
        )
        for device, n_bytes in sorted(sums.items())
    ]  # fmt: skip


def kv_widths(known: Facts, params: MemoryParams, layer: int) -> list[tuple[str, int]]:
    """(type, elements per cell) of everything that the cache holds for ``layer``."""
    flash = params.flash_attn != "off"
    found = [(params.type_k, known.k_width(layer))]
    if not known.mla:
        # Without flash attention V is transposed and all layers get the widest (kv-cache.cpp:210).
        width = known.v_width(layer)
        if not flash:
            width = max(known.v_width(il) for il in range(known.n_layer_all))
        found.append((params.type_v, width))
    if known.indexer and known.indexed[layer] and not params.mtp_context:
        # One key head of the indexer; its V is not kept with MLA (kv-cache-dsa.cpp:33-53).
        found.append((params.type_k, known.indexer))
        if not known.mla:
            found.append((params.type_v, known.value_length))
    return found


def _kv_why(known: Facts, params: MemoryParams, size: ContextSize, cells_swa: int) -> str:
    cells = f"{size.n_ctx_seq} cells x {size.n_stream} streams"
    if known.window:
        cells += f", {cells_swa} in layers with a window of {known.window}"
        cells += " (llama-kv-cache-iswa.cpp:69-81)"
    kind = "keys only (MLA)" if known.mla else f"K {params.type_k}, V {params.type_v}"
    if known.indexer:
        kind += ", and an indexer's keys"
    return f"{cells}, {kind} (llama-kv-cache.cpp:208-234)"


def _count(layers: list[int], layout: Layout, device: str, params: MemoryParams) -> int:
    if not params.offload_kqv:
        return len(layers)
    return sum(layout.layers[layer] == device for layer in layers)


def _state_items(
    known: Facts, params: MemoryParams, size: ContextSize, layout: Layout, owner: str
) -> list[MemoryItem]:
    """Recurrent states: llama-memory-recurrent.cpp:101-106; the MTP context of a hybrid has none
    (llama-model.cpp:2651-2658)."""
    if params.mtp_context:
        return []
    rows = max(1, params.n_seq_max) * (1 + size.n_rs_seq)
    layers = [il for il in range(known.n_layer) if known.recurrent[il]]
    sums: defaultdict[str, int] = defaultdict(int)
    for layer in layers:
        device = layout.layers[layer] if params.offload_kqv else CPU
        pad = layout.storage(device).size
        for width in (known.conv_state, known.ssm_state):
            sums[device] += pad("F32", width, 4 * width * rows)
    why = (
        f"{params.n_seq_max} sequences x (1 + {size.n_rs_seq}) rows of {known.conv_state} + "
        f"{known.ssm_state} floats (llama-memory-recurrent.cpp:101-106)"
    )
    return [
        MemoryItem(
            device, owner, "recurrent_state", n_bytes, layout.storage(device).source,
            f"{_count(layers, layout, device, params)} layers, {why}",
        )
        for device, n_bytes in sorted(sums.items())
    ]  # fmt: skip


def cache_problem(known: Facts, params: MemoryParams) -> str | None:
    """Why libllama would refuse these cache types for this model; None if it would not.

    The checks of ``llama_init_from_model`` (llama-context.cpp:3816-3866).
    """
    if not known.cached or known.arch in RECURRENT:
        return None
    block_k, block_v = KV_TYPES[params.type_k][0], KV_TYPES[params.type_v][0]
    if known.mla and params.type_k != params.type_v:
        return f"a cache of MLA keys needs one type: K is {params.type_k}, V is {params.type_v}"
    if block_v > 1 and params.flash_attn == "off":
        return f"a cache of {params.type_v} values needs flash attention"
    for name, block, length in (
        (params.type_k, block_k, known.key_length),
        (params.type_v, block_v, known.value_length),
    ):
        if length % block:
            return f"{name} needs heads of a multiple of {block}, this model's are {length} wide"
    return None


def row_bytes(type_name: str, width: int) -> int:
    """Bytes of ``width`` elements of a cache type.

    Raises:
        UsageError: an unknown cache type.
    """
    if type_name not in KV_TYPES:
        raise UsageError(f"unknown cache type {type_name!r}", hint=f"one of {', '.join(KV_TYPES)}")
    block, n_bytes = KV_TYPES[type_name]
    return width // block * n_bytes


def quantized_scratch(
    known: Facts, params: MemoryParams, size: ContextSize, layers: list[int]
) -> int:
    """Bytes of the f16 copy of one layer's keys and values that CUDA's flash attention makes of a
    quantized cache (fattn-common.cuh:53-83): the largest of ``layers``."""
    cells_swa = swa_cells(known, params, size) if known.window else 0

    def of_layer(layer: int) -> int:
        cells = cells_swa if known.window and known.windowed[layer] else size.n_ctx_seq
        width = sum(
            width for name, width in kv_widths(known, params, layer) if KV_TYPES[name][0] > 1
        )
        return 2 * width * cells * size.n_stream

    return max((of_layer(layer) for layer in layers), default=0)


def _pad(value: int, to: int) -> int:
    return -(-value // to) * to
