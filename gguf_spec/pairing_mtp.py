"""Can an MTP head, a chain of them, or an assistant draft for this target? Told from the headers.

llama.cpp drives all three as ``draft-mtp`` (``common_speculative_impl_draft_mtp`` in
common/speculative.cpp). What is refused here ends the process there: by a ``GGML_ASSERT`` in the
graph (src/models/), by a tensor that is not there, or, for assistants, in the target's cache, whose
layers ``create_memory`` in llama-model.cpp hands on without looking at their shapes.
"""

from __future__ import annotations

from gguf_spec.header import ModelInfo
from gguf_spec.hidden_states import (
    ASSISTANT_ARCH,
    ASSISTED_ARCH,
    CHAIN_ARCHS,
    MTP_ARCHS,
    NEXTN,
    STORED_ARCHS,
    state_problem,
)
from gguf_spec.loadable_layers import lacking_feed_forward, per_layer

_HEAD = ("nextn.eh_proj", "nextn.enorm", "nextn.hnorm")


def mtp_problem(target: ModelInfo, head: ModelInfo) -> str | None:
    """Why what is in the file ``head`` cannot draft for ``target`` as ``draft-mtp``; None if it
    can. It may be the same file."""
    if head.role == "assistant":
        return _assistant_problem(target, head)
    n = head.n_layer_nextn
    if n == 0:
        return f"{head.name} has no MTP head"
    if head.arch not in MTP_ARCHS:
        kept = "; the file only stores it" if head.arch in STORED_ARCHS else ""
        return f"llama.cpp does not compute the MTP heads of {head.arch} models{kept}"
    if n > 1 and head.arch not in CHAIN_ARCHS:
        return (
            f"{head.name} has a chain of {n} MTP heads, of which llama.cpp computes one for "
            f"{head.arch} models"
        )
    problem = _head_problem(head)
    if problem is not None:
        return problem
    if head.n_embd != target.n_embd:
        return f"the states differ in width: target {target.n_embd}, head {head.n_embd}"
    return state_problem(target.arch or "", target.n_layer or 0, (NEXTN,))


def chain_length(head: ModelInfo) -> int | None:
    """The longest draft of a chain of heads, one token each; None for what can go on for ever."""
    is_chain = head.role != "assistant" and head.n_layer_nextn > 1
    return head.n_layer_nextn if is_chain else None


def _head_problem(head: ModelInfo) -> str | None:
    """Tensors that the graph of a head takes for granted."""
    names = {tensor.name for tensor in head.tensors}
    first = head.n_layer or 0
    blocks = range(first, first + head.n_layer_nextn)
    if not any(f"blk.{block}.nextn.eh_proj.weight" in names for block in blocks):
        return f"{head.name} was stripped of its MTP head: the tensors are not there"
    for block in blocks:
        wanted = (*_HEAD, "attn_qkv") if head.arch == "mimo2" else _HEAD
        names_wanted = (f"blk.{block}.{name}.weight" for name in wanted)
        lacking = next((name for name in names_wanted if name not in names), None)
        if lacking is None and head.arch in CHAIN_ARCHS:
            lacking = lacking_feed_forward(head, block)
        if lacking is not None:
            return f"{head.name} has no {lacking} for its MTP head"
        own = f"blk.{block}.nextn.shared_head_head.weight"
        if head.arch == "step35" and not {own, "output.weight"} & names:
            return f"{head.name} has neither {own} nor output.weight for its MTP head"
    return None


def _assistant_problem(target: ModelInfo, head: ModelInfo) -> str | None:
    """Why the assistant ``head`` cannot draft for ``target``; None if it can."""
    if head.arch != ASSISTANT_ARCH:
        return f"llama.cpp knows no {head.arch} models (it calls assistants {ASSISTANT_ARCH})"
    if target.arch != ASSISTED_ARCH:
        return (
            f"{head.name} attends to the cache of a {ASSISTED_ARCH} model, the target is a "
            f"{target.arch} model"
        )
    blocks = head.arch_uint("block_count", 0) or 0
    if head.n_layer_nextn != blocks:
        return (
            f"{head.name} has {blocks} layers, of which {head.n_layer_nextn} draft: in an "
            "assistant all of them do"
        )
    width = head.arch_uint("embedding_length_out", head.n_embd)
    if width != target.n_embd:
        return f"the states differ in width: target {target.n_embd}, assistant made for {width}"
    if head.n_embd == width:
        return f"{head.name} is {width} values wide, as wide as its target"
    if head.vocab_size != target.vocab_size:
        return (
            f"{head.name} reads the target's embeddings, but the sizes of the vocabularies differ: "
            f"target {target.vocab_size}, assistant {head.vocab_size}"
        )
    return _cache_problem(target, head, blocks)


def _cache_problem(target: ModelInfo, head: ModelInfo, blocks: int) -> str | None:
    """Layers with a sliding window attend to the keys of the target's last layer but one, the
    others to those of its last layer; the shapes have to be theirs."""
    layers = target.n_layer or 0
    shared = target.arch_uint("attention.shared_kv_layers", 0) or 0
    swa, theirs = (per_layer(i, "attention.sliding_window_pattern") for i in (head, target))
    if layers < 2 or not theirs[layers - 2] or theirs[layers - 1]:
        return (
            f"the last layers of {target.name} are not one with a sliding window and one without, "
            "which assistants attend to"
        )
    for layer in range(blocks):
        window = bool(swa[layer])
        # With shared layers, the cache is that of the last ones that have keys of their own.
        sources = {n - (2 if window else 1) for n in (layers, layers - shared)}
        ours = _cached_shape(head, layer, window)
        for source in sorted(sources):
            wanted = _cached_shape(target, source, window)
            if ours != wanted:
                return (
                    f"layer {layer} of {head.name} attends to {_told(ours)}, layer {source} of the "
                    f"target keeps {_told(wanted)}"
                )
    return None


def _cached_shape(info: ModelInfo, layer: int, window: bool) -> tuple[int, int, int]:
    """(heads, values of a key, values of a value) that a layer keeps for each token."""
    counts = per_layer(info, "attention.head_count_kv") or per_layer(info, "attention.head_count")
    count = counts[layer] if 0 <= layer < len(counts) else counts[0] if counts else 0
    usual = (info.n_embd or 0) // max(1, (per_layer(info, "attention.head_count") or [1])[0])
    sizes = []
    for name in ("key_length", "value_length"):
        size = info.arch_uint(f"attention.{name}", usual)
        if window:
            size = info.arch_uint(f"attention.{name}_swa", size)
        sizes.append(size or 0)
    return count, sizes[0], sizes[1]


def _told(shape: tuple[int, int, int]) -> str:
    return f"{shape[0]} heads of {shape[1]} and {shape[2]} values"
