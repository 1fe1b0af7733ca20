"""How a context is made: its sizes, types and states."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

from gguf_spec.memory.limits import fitting_snapshots

if TYPE_CHECKING:
    from gguf_spec.backend.states_context import LlamaContext

# ggml's type numbers for what a KV cache may be stored in (ggml.h, enum ggml_type).
KV_TYPES = {
    "f32": 0,
    "f16": 1,
    "q4_0": 2,
    "q4_1": 3,
    "q5_0": 6,
    "q5_1": 7,
    "q8_0": 8,
    "iq4_nl": 20,
    "bf16": 30,
}
FLASH_ATTN = {"auto": -1, "off": 0, "on": 1}
_MTP = 1  # LLAMA_CONTEXT_TYPE_MTP
_LEAST_CTX = 2  # the probe for removal decodes two tokens


@dataclass(frozen=True, slots=True)
class ContextParams:
    """How large a context is and how it computes.

    ``n_ctx`` is per sequence. ``max_width`` is the most rows with logits that one sequence may have
    in one decode, draft included: it sizes the logits buffers. ``rope`` holds llama.cpp's
    ``rope_…`` and ``yarn_…`` fields that differ from the model's own. ``kv_unified`` puts all
    sequences into one cache instead of one each.

    ``n_rs_seq`` asks for that many snapshots of a recurrent state, so that as many tokens can be
    removed; ``LlamaContext.n_rollback`` says how many there are. ``layers`` are the hidden states
    to be kept for every token (see ``hidden_states``), for drafters to read.

    For the contexts of draft heads: ``mtp`` computes the model's MTP head instead of the model,
    ``other`` is the target's context, which lends its embeddings, ``own_states`` keeps the head's
    states of rows with logits, ``causal`` False lets the rows of a batch see each other.
    """

    n_ctx: int
    n_seq_max: int = 1
    n_batch: int = 2048
    n_ubatch: int = 512
    max_width: int = 1
    n_threads: int = 1
    n_threads_batch: int = 1
    type_k: str = "f16"
    type_v: str = "f16"
    flash_attn: str = "auto"
    swa_full: bool = False
    kv_unified: bool = False
    rope: tuple[tuple[str, float], ...] = ()
    n_rs_seq: int = 0
    layers: tuple[int, ...] = ()
    mtp: bool = False
    other: LlamaContext | None = None
    own_states: bool = False
    causal: bool = True


def batch_rows(params: ContextParams) -> int:
    """The most rows of a batch: never more than the caches hold, nothing is sized for more."""
    rows = max(params.n_batch, params.n_ubatch + params.n_seq_max * params.max_width)
    return min(rows, max(params.n_ctx, _LEAST_CTX) * params.n_seq_max)


def raw_context_params(api: ModuleType, p: ContextParams) -> Any:
    """``llama_context_params`` for ``p``, but for ``other``."""
    raw = api.llama_context_default_params()
    raw.n_ctx = max(p.n_ctx, _LEAST_CTX) * p.n_seq_max
    raw.n_seq_max = p.n_seq_max
    raw.n_batch, raw.n_ubatch = batch_rows(p), p.n_ubatch
    raw.n_outputs_max = p.n_seq_max * p.max_width
    raw.n_outputs_max_per_seq = p.max_width
    raw.n_threads, raw.n_threads_batch = p.n_threads, p.n_threads_batch
    raw.type_k, raw.type_v = KV_TYPES[p.type_k], KV_TYPES[p.type_v]
    raw.flash_attn_type = FLASH_ATTN[p.flash_attn]
    raw.swa_full, raw.kv_unified = p.swa_full, p.kv_unified
    raw.no_perf = True
    raw.n_rs_seq = fitting_snapshots(p.n_rs_seq, min(raw.n_batch, raw.n_ubatch))
    if p.mtp:
        raw.ctx_type = _MTP
    for name, value in p.rope:
        setattr(raw, name, value)
    return raw
