"""What a model, and what a draft, needs on each device: the rules put together.

``target_items`` is the bill of a model on its own. A draft's bill has two parts: ``draft_items``,
its own weights, cache and buffers, and ``draft_deltas``, by how much it makes the target's buffers
grow. Both belong to the owner "draft", so that a draft can be judged by all it costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gguf_spec.header import ModelInfo
from gguf_spec.memory.cache import cache_items, context_size
from gguf_spec.memory.compute import compute_items, output_items
from gguf_spec.memory.facts import facts
from gguf_spec.memory.layout import Layout, layout
from gguf_spec.memory.limits import fitting_snapshots, snapshots
from gguf_spec.memory.overhead import overhead_items
from gguf_spec.memory.types import (
    Hardware,
    Kind,
    MemoryItem,
    MemoryParams,
    Placement,
    Source,
)
from gguf_spec.memory.weights import mtp_bytes, weight_items

HEADS = ("draft-mtp", "draft-eagle3", "draft-dflash", "draft-dspark")
BLOCKS = ("draft-dflash", "draft-dspark")


def target_items(
    info: ModelInfo, params: MemoryParams, placement: Placement, hardware: Hardware
) -> list[MemoryItem]:
    """Everything that running ``info`` needs, on each device.

    Raises:
        UsageError: the placement does not fit the hardware, or a cache type is unknown.
    """
    where = layout_of(info, placement, hardware)
    known = facts(info)
    return [
        *weight_items(info, where, placement, hardware, load_mtp=params.load_mtp),
        *context_items(info, params, where, placement),
        *overhead_items(known, where),
    ]


def layout_of(info: ModelInfo, placement: Placement, hardware: Hardware) -> Layout:
    """Which device each layer of ``info`` goes to."""
    return layout(facts(info).n_layer_all, placement, hardware)


def context_items(
    info: ModelInfo,
    params: MemoryParams,
    where: Layout,
    placement: Placement | None = None,
    *,
    owner: str = "target",
) -> list[MemoryItem]:
    """Cache, compute and output buffers of one context."""
    return [
        *cache_items(facts(info), params, where, owner=owner),
        *compute_items(info, params, where, placement, owner=owner),
        *output_items(info, params, owner=owner),
    ]


def draft_items(
    kind: str,
    draft: ModelInfo,
    target: ModelInfo,
    params: MemoryParams,
    placement: Placement,
    hardware: Hardware,
) -> list[MemoryItem]:
    """Weights, cache and buffers of a draft of spec type ``kind``.

    ``params`` are those of the draft's own context (see ``draft_context``) and ``placement`` that
    of its model. For an MTP head inside the target's file pass the target as ``draft``, too, with
    the target's placement: it then costs the weights of its layers, and their cache.

    Raises:
        UsageError: as ``target_items``.
    """
    where = layout_of(draft, placement, hardware)
    inside = kind == "draft-mtp" and (draft is target or draft.files == target.files)
    if kind == "draft-mtp":
        params = replace(params, load_mtp=True, mtp_context=True)
    if inside:
        weights = [
            MemoryItem(
                device, "draft", "weights", n_bytes, where.storage(device).source,
                "the MTP layers of the target's file (load_mtp, llama-model-loader.cpp:1178-1185)",
            )
            for device, n_bytes in sorted(mtp_bytes(draft, where).items())
        ]  # fmt: skip
    else:
        weights = weight_items(
            draft, where, placement, hardware, load_mtp=params.load_mtp, owner="draft"
        )
    items = [*weights, *context_items(draft, params, where, placement, owner="draft")]
    if not inside:
        items += overhead_items(facts(draft), where, owner="draft", process=False)
    return items


def draft_context(
    kind: str, target: MemoryParams, *, n_max: int, n_ubatch: int, n_ctx: int | None = None
) -> MemoryParams:
    """Parameters of the context that a draft of spec type ``kind`` is run with beside a target.

    It has one output for each sequence, those of block drafts one for each token of the block
    (common/speculative.cpp:2480-2498), and no snapshots.
    """
    width = n_max + 1 if kind in BLOCKS else 1
    n_seq = target.n_seq_max
    n_ctx = target.n_ctx if n_ctx is None else n_ctx
    return MemoryParams(
        n_ctx=n_ctx,
        n_seq_max=n_seq,
        kv_unified=target.kv_unified,
        type_k=target.type_k,
        type_v=target.type_v,
        swa_full=kind in BLOCKS,  # what slid out of the window may be needed again
        n_batch=n_ubatch + n_seq * width,
        n_ubatch=n_ubatch,
        n_outputs_max=n_seq * width,
        flash_attn=target.flash_attn,
        offload_kqv=target.offload_kqv,
        op_offload=target.op_offload,
        load_mtp=kind == "draft-mtp",
        mtp_context=kind == "draft-mtp",
        own_states=kind in HEADS,
    )


def with_draft(
    kind: str, n_max: int, draft: ModelInfo | None, target: ModelInfo, params: MemoryParams
) -> MemoryParams:
    """The target's parameters when a draft of spec type ``kind`` drafts up to ``n_max`` tokens.

    Every sequence has 1 + ``n_max`` rows with logits. Heads read hidden states. Recurrent states
    get a snapshot for each token that may have to be taken back, where libllama can do that, and
    unless an n-gram drafter drafts: for its rare and long drafts there are checkpoints.
    """
    changed = replace(
        params, n_outputs_max=max(params.n_outputs_max, params.n_seq_max * (1 + n_max))
    )
    if kind.startswith("ngram"):
        return changed
    taps, nextn = _states(kind, draft, target)
    known = facts(target)
    n_rs_seq = snapshots(target, n_max) if known.rollback else 0
    n_rs_seq = fitting_snapshots(n_rs_seq, context_size(known, params).n_ubatch)
    return replace(
        changed,
        n_rs_seq=max(params.n_rs_seq, n_rs_seq),
        n_taps=max(params.n_taps, taps),
        nextn=params.nextn or nextn,
    )


def _states(kind: str, draft: ModelInfo | None, target: ModelInfo) -> tuple[int, bool]:
    """How many layer inputs of the target a head reads, and whether the last state, too."""
    if kind not in HEADS or draft is None or kind == "draft-mtp":
        return 0, kind == "draft-mtp"
    layers = draft.metadata.get(f"{draft.arch}.target_layers")
    if not isinstance(layers, tuple):
        return 0, False
    if kind == "draft-eagle3":
        last = target.n_layer in layers
        return len(layers) - last, last
    return len(layers), False


def draft_deltas(
    kind: str,
    n_max: int,
    draft: ModelInfo | None,
    target: ModelInfo,
    params: MemoryParams,
    placement: Placement,
    hardware: Hardware,
) -> list[MemoryItem]:
    """By how much a draft makes the buffers of its target grow: snapshots, outputs, compute.

    ``params`` are the target's without the draft; ``draft`` is None for n-gram drafters.

    Raises:
        UsageError: as ``target_items``.
    """
    where = layout_of(target, placement, hardware)
    changed = with_draft(kind, n_max, draft, target, params)
    before = _sums(context_items(target, params, where, placement))
    items = []
    after = context_items(target, changed, where, placement)
    sums = _sums(after)
    for (device, item_kind), (n_bytes, source) in sums.items():
        more = n_bytes - before.get((device, item_kind), (0, source))[0]
        if more <= 0:
            continue
        items.append(
            MemoryItem(
                device,
                "draft",
                "snapshots" if item_kind == "recurrent_state" else item_kind,
                more,
                source,
                _why(item_kind, n_max, params, changed),
            )
        )
    return items


def _sums(items: Sequence[MemoryItem]) -> dict[tuple[str, Kind], tuple[int, Source]]:
    sums: dict[tuple[str, Kind], tuple[int, Source]] = {}
    for item in items:
        n_bytes = sums.get((item.device, item.kind), (0, item.source))[0]
        sums[item.device, item.kind] = (n_bytes + item.bytes, item.source)
    return sums


def _why(kind: Kind, n_max: int, params: MemoryParams, changed: MemoryParams) -> str:
    if kind == "recurrent_state":
        return (
            f"{changed.n_rs_seq - params.n_rs_seq} snapshots of the target's recurrent states, one "
            "for each drafted token (llama-memory-recurrent.cpp:101-106)"
        )
    what = f"rows with logits: {params.n_outputs_max} -> {changed.n_outputs_max}"
    states = changed.n_taps - params.n_taps + changed.nextn - params.nextn
    if states:
        what += f"; {states} hidden states of every row"
    return f"the target's {kind} buffer for drafts of {n_max}: {what}"
