"""Compute buffers and the buffer for outputs.

libllama builds the graph of its largest batch and lets ggml's allocator place every intermediate
tensor; what that comes to is not a sum but a packing. The formulas here name the tensors that are
alive at the widest point of each kind of graph.
"""

from __future__ import annotations

from gguf_spec.header import ModelInfo
from gguf_spec.memory.cache import ContextSize, context_size, kv_layers, quantized_scratch
from gguf_spec.memory.facts import Facts, facts
from gguf_spec.memory.layout import Layout
from gguf_spec.memory.types import CPU, MemoryItem, MemoryParams


def output_items(
    info: ModelInfo, params: MemoryParams, *, owner: str = "target"
) -> list[MemoryItem]:
    """The host buffer that logits and hidden states are read from: ``output_reserve``,
    llama-context.cpp:2116-2160. It grows with the first batches to what is counted here."""
    known = facts(info)
    size = context_size(known, params)
    rows = max(params.n_outputs_max or size.n_batch, params.n_seq_max)
    logits = 4 * known.n_vocab * rows
    width = info.arch_uint("embedding_length_out") or known.n_embd
    states = 4 * params.n_taps * known.n_embd * size.n_batch
    states += 4 * width * size.n_batch if params.nextn else 0
    why = f"logits of {rows} rows x {known.n_vocab} tokens"
    if states:
        n = params.n_taps + params.nextn
        why += f", {n} hidden states of {size.n_batch} rows"
    why += " (llama-context.cpp:2116-2160)"
    return [MemoryItem(CPU, owner, "output", logits + states, "exact", why)]


def compute_items(
    info: ModelInfo, params: MemoryParams, layout: Layout, *, owner: str = "target"
) -> list[MemoryItem]:
    """The compute buffers of one context, by device."""
    known = facts(info)
    size = context_size(known, params)
    n_bytes = graph_bytes(info, known, params, size)
    devices = sorted({*layout.layers, layout.output})
    items = []
    for device in devices:
        items.append(
            MemoryItem(
                device, owner, "compute", n_bytes, "formula",
                f"the graph of {size.n_ubatch} tokens (llama-context.cpp:615-767)",
            )
        )  # fmt: skip
        if layout.backends[device] not in ("CUDA", "ROCm", "MUSA") or not params.offload_kqv:
            continue
        layers = [il for il in kv_layers(known, params) if layout.layers[il] == device]
        scratch = quantized_scratch(known, params, size, layers)
        if scratch:
            why = "an f16 copy of one layer's quantized keys and values (fattn-common.cuh:53-83)"
            items.append(MemoryItem(device, owner, "compute", scratch, "formula", why))
    return items


def graph_bytes(info: ModelInfo, known: Facts, params: MemoryParams, size: ContextSize) -> int:
    """Bytes that the allocator needs for the graph of the largest batch."""
    tokens = min(size.n_ctx, size.n_ubatch)
    outputs = min(tokens, size.n_outputs_max)
    logits = 4 * known.n_vocab * outputs
    ff = max(known.n_ff, default=0)
    mask = 2 * size.n_ctx_seq * size.n_stream * tokens
    return logits + 4 * tokens * (2 * ff + 4 * known.n_embd) + mask
