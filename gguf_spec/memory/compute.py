"""Compute buffers and the buffer for outputs.

libllama builds the graph of its largest batch and lets ggml's allocator place every intermediate
tensor (``sched_reserve``, llama-context.cpp:615-767). That is not a sum but a packing, decided by
the widest point of the graph. The formulas here name the tensors that are alive there, in floats
for each token, for the kinds of layers there are. They were fitted to libllama's own counts on the
CPU, and are labelled "formula".
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, replace

from gguf_spec.header import ModelInfo
from gguf_spec.memory.cache import (
    ContextSize,
    context_size,
    kv_layers,
    quantized_scratch,
    swa_cells,
)
from gguf_spec.memory.facts import Facts, count_of, facts, per_layer, remembered
from gguf_spec.memory.layout import Layout
from gguf_spec.memory.types import CPU, LOWER_BOUND, MemoryItem, MemoryParams, Placement
from gguf_spec.memory.weights import cpu_layer_bytes

_PIPELINE_COPIES = 4  # GGML_SCHED_MAX_COPIES
_OFFLOAD_TOKENS = 32  # batches below stay where the weights are (ggml-cuda.cu, op_offload_min)


@dataclass(frozen=True, slots=True)
class _Work:
    """The widest points of one layer: floats for each token, and floats for each sequence.

    ``plain`` is the attention of a layer without flash attention, beside its scores; ``routed``
    what all experts of a token give.
    """

    flash: int
    plain: int
    n_head: int
    feed_forward: int
    routed: int
    state: int
    state_row: int
    windowed: bool


def output_items(
    info: ModelInfo, params: MemoryParams, *, owner: str = "target"
) -> list[MemoryItem]:
    """The host buffer that logits and hidden states are read from: ``output_reserve``,
    llama-context.cpp:2116-2160. It grows with the first batches to what is counted here."""
    known = facts(info)
    size = context_size(known, params)
    rows = max(params.n_outputs_max or size.n_batch, params.n_seq_max)
    logits = 4 * known.n_vocab * rows
    width = count_of(info, "embedding_length_out") or known.n_embd
    states = 4 * params.n_taps * known.n_embd * size.n_batch
    states += 4 * width * size.n_batch if params.nextn else 0
    states += 4 * width * rows if params.own_states and not params.nextn else 0
    why = f"logits of {rows} rows x {known.n_vocab} tokens"
    if states:
        why += f", {states} bytes of hidden states of up to {size.n_batch} rows"
    why += " (llama-context.cpp:2116-2160)"
    return [MemoryItem(CPU, owner, "output", logits + states, "exact", why)]


def compute_items(
    info: ModelInfo,
    params: MemoryParams,
    layout: Layout,
    placement: Placement | None = None,
    *,
    owner: str = "target",
) -> list[MemoryItem]:
    """The compute buffers of one context, by device."""
    known = facts(info)
    size = context_size(known, params)
    gpus = sorted({*layout.layers, layout.output} - {CPU})
    computed = _computed_layers(known, params)
    inputs = input_bytes(known, params, size)
    copies = _PIPELINE_COPIES if _is_pipeline(layout, gpus, params, placement) else 1
    n_cpu_moe = placement.n_cpu_moe if placement is not None else 0
    on_cpu = [il for il in computed if layout.layers[il] == CPU or il < n_cpu_moe]
    items = []
    if on_cpu or layout.output == CPU:
        n_bytes = graph_bytes(info, params, size, on_cpu, output=layout.output == CPU)
        items.append(_item(CPU, owner, n_bytes, _graph_why(size)))
    else:
        why = f"embeddings and masks of {size.n_ubatch} tokens, made on the host"
        items.append(_item(CPU, owner, inputs, why))
    for device in gpus:
        layers = [il for il in computed if layout.layers[il] == device]
        n_bytes = graph_bytes(info, params, size, layers, output=layout.output == device)
        why = _graph_why(size)
        if copies > 1:
            n_bytes += (copies - 1) * inputs
            why += f"; {copies} copies of its inputs for pipeline parallelism (428-457)"
        items.append(_item(device, owner, n_bytes, why))
        items += _scratch_items(known, params, size, layout, device, owner)
    items += _offload_items(info, params, size, layout, placement or Placement(), owner)
    return items if known.known else [_lower_bound(item, known) for item in items]


def _item(device: str, owner: str, n_bytes: int, why: str) -> MemoryItem:
    return MemoryItem(device, owner, "compute", n_bytes, "formula", why)


def _offload_items(
    info: ModelInfo,
    params: MemoryParams,
    size: ContextSize,
    layout: Layout,
    placement: Placement,
    owner: str,
) -> list[MemoryItem]:
    """Large batches of layers on the CPU are computed on the first device, with copies of their
    weights (op_offload, ggml-backend.cpp:970); repacked weights stay, so this may be too much."""
    if not (layout.devices and params.op_offload and size.n_ubatch >= _OFFLOAD_TOKENS):
        return []
    computed = _computed_layers(facts(info), params)
    copied = cpu_layer_bytes(info, layout, placement, computed)
    if not copied:
        return []
    first = layout.devices[0]
    if first not in layout.layers:  # elsewhere the graph is counted already
        copied += graph_bytes(info, params, size, computed, output=False)
    why = (
        f"weights of a layer on the CPU, copied for batches of {_OFFLOAD_TOKENS} tokens "
        "and more (op_offload)"
    )
    return [_item(first, owner, copied, why)]


def _lower_bound(item: MemoryItem, known: Facts) -> MemoryItem:
    why = f"{LOWER_BOUND}{known.label} is not fully known; {item.why}"
    return replace(item, source="assumed", why=why)


def _graph_why(size: ContextSize) -> str:
    return (
        f"the graph of {size.n_ubatch} tokens with {min(size.n_ubatch, size.n_outputs_max)} rows "
        "of logits (llama-context.cpp:615-767)"
    )


def _computed_layers(known: Facts, params: MemoryParams) -> range:
    if params.mtp_context or known.n_layer == 0:
        return range(known.n_layer, known.n_layer_all)
    return range(known.n_layer)


def _is_pipeline(
    layout: Layout, gpus: list[str], params: MemoryParams, placement: Placement | None
) -> bool:
    """Several devices that hold everything compute in parallel: llama-context.cpp:428-457."""
    overrides = placement is not None and (placement.override_tensor or placement.n_cpu_moe)
    whole = CPU not in layout.layers and layout.output != CPU
    return len(gpus) > 1 and whole and params.offload_kqv and not overrides


def _scratch_items(
    known: Facts, params: MemoryParams, size: ContextSize, layout: Layout, device: str, owner: str
) -> list[MemoryItem]:
    """The f16 copy of quantized keys and values in CUDA's flash attention: fattn.cu:722-756."""
    if layout.backends[device] not in ("CUDA", "ROCm", "MUSA") or not params.offload_kqv:
        return []
    layers = [il for il in kv_layers(known, params) if layout.layers[il] == device]
    scratch = quantized_scratch(known, params, size, layers)
    if not scratch:
        return []
    why = "an f16 copy of one layer's quantized keys and values (fattn-common.cuh:53-83)"
    return [_item(device, owner, scratch, why)]


def input_bytes(known: Facts, params: MemoryParams, size: ContextSize) -> int:
    """Bytes of what the host prepares for a batch: embeddings, and a mask for each cache.

    A mask has a half float for each cell and token, without flash attention a whole one.
    """
    tokens = min(size.n_ctx, size.n_ubatch)
    return 4 * tokens * known.n_embd + _mask_bytes(known, params, size, tokens)


def _mask_bytes(known: Facts, params: MemoryParams, size: ContextSize, tokens: int) -> int:
    layers = kv_layers(known, params) or (
        list(range(known.n_layer_all)) if known.arch == "gemma4-assistant" else []
    )
    width = 4 if params.flash_attn == "off" else 2
    cells = 0
    if any(not (known.window and known.windowed[il]) for il in layers):
        cells += size.n_ctx_seq
    if known.window and any(known.windowed[il] for il in layers):
        cells += swa_cells(known, params, size)
    if known.indexer and not params.mtp_context:
        # The indexer has a mask of its own, and its scores are whole floats.
        return (2 * width + 4) * cells * tokens
    return width * cells * tokens


def graph_bytes(
    info: ModelInfo, params: MemoryParams, size: ContextSize, layers: Iterable[int], *, output: bool
) -> int:
    """Bytes that the allocator needs for ``layers``, and for the logits with ``output``."""
    known = facts(info)
    tokens = min(size.n_ctx, size.n_ubatch)
    works = _works(info)
    masks = _mask_bytes(known, params, size, tokens)
    computed = list(layers)
    # A mask is kept until the last layer that attends is through with it.
    last = max((il for il in computed if works[il].n_head), default=-1)
    widest = 0
    for il in computed:
        attention, other = _layer_bytes(known, works[il], params, size, tokens)
        widest = max(widest, attention + masks, other + (masks if il < last else 0))
    taps = (params.n_taps + params.nextn) * 4 * tokens * known.n_embd
    per_layer_inputs = 4 * tokens * count_of(info, "embedding_length_per_layer_input")
    widest += taps + per_layer_inputs * known.n_layer
    if output:
        base, logits = _output_bytes(info, known, params, size, tokens)
        widest = max(widest + base, base + logits + taps)
    return widest


def _layer_bytes(
    known: Facts, work: _Work, params: MemoryParams, size: ContextSize, tokens: int
) -> tuple[int, int]:
    """The widest points of one layer, without masks: of its attention, and of the rest."""
    attention = 4 * tokens * work.flash
    if params.flash_attn == "off" and work.n_head:
        cells = size.n_ctx_seq
        if known.window and work.windowed:
            cells = swa_cells(known, params, size)
        attention = 4 * tokens * (work.plain + cells * work.n_head)
    state = 0
    if work.state:
        rows = params.n_seq_max * (2.75 + (size.n_rs_seq + 1 if size.n_rs_seq else 0))
        state = 4 * (tokens * work.state + int(rows * work.state_row))
    return attention, max(4 * _feed_forward_floats(known, work, params, size, tokens), state)


#: Their MTP heads leave out rows without outputs before the feed-forward part.
_CROPPED_HEADS = ("nemotron_h_moe", "qwen3next")


def _feed_forward_floats(
    known: Facts, work: _Work, params: MemoryParams, size: ContextSize, tokens: int
) -> int:
    """The feed-forward part; an MTP head holds less beside its experts than a layer of many."""
    if not params.mtp_context:
        return tokens * work.feed_forward
    if known.arch in _CROPPED_HEADS:
        return min(tokens, size.n_outputs_max) * work.feed_forward + 5 * tokens * known.n_embd
    return tokens * (work.feed_forward * 7 // 8 if work.routed else work.feed_forward)


def _output_bytes(
    info: ModelInfo, known: Facts, params: MemoryParams, size: ContextSize, tokens: int
) -> tuple[int, int]:
    """Logits with the states they are computed from, after what is there for the whole graph."""
    outputs = min(tokens, size.n_outputs_max)
    routed = max((work.routed for work in _works(info)), default=0)
    states = 4 * tokens * (2 * known.n_embd) + 4 * outputs * (routed // 2)
    logits = 4 * known.n_vocab * outputs
    shapes = {tensor.name: tensor.shape for tensor in info.tensors if tensor.name in _HEAD_TENSORS}
    if "d2t" in shapes:
        # Logits of a vocabulary of its own are spread over the target's, made at the start.
        return logits, 4 * outputs * shapes["d2t"][0] + states
    block = count_of(info, "block_size")
    if "markov_w1.weight" in shapes and tokens <= block * params.n_seq_max:
        # The chain of DSpark adds to the logits token by token, with copies (dflash.cpp:296-405).
        logits = logits * 17 // 4
    return 0, logits + states


_HEAD_TENSORS = ("d2t", "markov_w1.weight")
_WORKS: OrderedDict[int, tuple[ModelInfo, list[_Work]]] = OrderedDict()


def _works(info: ModelInfo) -> list[_Work]:
    return remembered(_WORKS, info, _read_works)


def _read_works(info: ModelInfo) -> list[_Work]:
    known = facts(info)
    shapes: list[dict[str, tuple[int, ...]]] = [{} for _ in range(known.n_layer_all)]
    for tensor in info.tensors:
        parts = tensor.name.split(".")
        if parts[0] == "blk" and len(parts) > 2 and parts[1].isdigit():
            layer = int(parts[1])
            if layer < known.n_layer_all and parts[-1] == "weight":
                shapes[layer][".".join(parts[2:-1])] = tensor.shape
    used = per_layer(info, "expert_used_count", known.n_layer_all, 0)
    return [_work(info, known, il, shapes[il], used[il]) for il in range(known.n_layer_all)]


def _work(
    info: ModelInfo, known: Facts, il: int, shapes: dict[str, tuple[int, ...]], used: int
) -> _Work:
    e, heads = known.n_embd, known.n_head[il]
    q, kv = known.k_width(il) // max(known.n_head_kv[il], 1) * heads, known.k_width(il)
    full = _columns(shapes, "attn_q") or q  # with a gate, the query is twice as wide
    attends = known.attends[il] or known.arch == "gemma4-assistant"
    plain = flash = 0
    if attends and known.mla:
        rank = count_of(info, "attention.kv_lora_rank")
        plain = flash = heads * (2 * rank + known.key_length)
    elif attends:
        plain = 2 * q + full + e + 2 * kv
        flash = q + full + 2 * e + 2 * kv
    state = state_row = 0
    if known.recurrent[il] and known.ssm_state:
        state_row = known.conv_state + known.ssm_state
        rwkv = any(name.startswith("time_mix_lerp") for name in shapes)
        state = 19 * e if rwkv else _state_work(shapes, e)
    return _Work(
        flash=flash,
        plain=plain,
        n_head=heads if attends else 0,
        feed_forward=_feed_forward(shapes, e, used),
        routed=used * e if "ffn_down_exps" in shapes else 0,
        state=state,
        state_row=state_row,
        windowed=known.windowed[il],
    )


def _columns(shapes: dict[str, tuple[int, ...]], name: str) -> int:
    """Values that a matrix gives; 0 without it."""
    shape = shapes.get(name, ())
    return shape[1] if len(shape) > 1 else 0


def _state_work(shapes: dict[str, tuple[int, ...]], e: int) -> int:
    """What a state-space layer computes with: projections, the convolution's input and output."""
    convolved = _columns(shapes, "ssm_conv1d")
    inner = shapes.get("ssm_out", (0,))[0]
    return _columns(shapes, "ssm_in") + 2 * convolved + inner + 3 * e


def _feed_forward(shapes: dict[str, tuple[int, ...]], e: int, used: int) -> int:
    """The widest point of a layer's feed-forward part: gate, up and their product."""
    widest = 0
    up = _columns(shapes, "ffn_up")
    if up:
        down = shapes.get("ffn_down", (up,))[0]  # gate and up may be one matrix
        widest = 3 * down + 4 * e if "ffn_gate" in shapes or up > down else 2 * up + 3 * e
    experts = shapes.get("ffn_down_exps")
    if experts is not None:
        gated = "ffn_gate_exps" in shapes or "ffn_gate_up_exps" in shapes
        widest = max(widest, (2 if gated else 1) * used * (e + experts[0]))
    shared = _columns(shapes, "ffn_up_shexp")
    if shared:
        widest = max(widest, 3 * shared + 5 * e)
    return widest
