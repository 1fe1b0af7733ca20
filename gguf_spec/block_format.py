"""What a DFlash or DSpark file says about itself, and whether such a head fits a target.

Told from the headers alone; the keys and defaults are those that
``common_speculative_impl_draft_dflash`` (llama.cpp's common/speculative.cpp) and
src/models/dflash.cpp read.
"""

from __future__ import annotations

from dataclasses import dataclass

from gguf_spec.header import ModelInfo
from gguf_spec.hidden_states import state_problem
from gguf_spec.pairing_heads import shared_problem, wanted_states

DEFAULT_BLOCK_SIZE = 16
#: Slots of the Markov chain. It is unrolled into the graph, about 20 nodes for each slot, and
#: libllama aborts where a graph has more nodes than it set aside for the tensors of the file
#: (``graph_max_nodes`` in llama-context.cpp); for the least favourable file that leaves 25.
MOST_CHAINED = 24
#: Cache types for these heads. With quantized ones, llama.cpp keeps the cache rotated; versions
#: that do not rotate what is written into it from the target accept nothing of such a draft.
CACHE_TYPES = ("f16", "bf16", "f32")


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """How a head drafts: a block of the last token and mask tokens, all slots in one decode.

    ``from_anchor``: the row of the last token predicts already (else its prediction is not used).
    ``causal``: the rows of a block see only those before them. ``markov``: a DSpark head, whose
    logits depend on the slot before. ``confidence``: it says how sure it is of each slot.
    ``selector``: candidates per slot of a DFlash 2 head, 0 for others. ``mask`` is a token id.
    """

    block_size: int
    mask: int
    from_anchor: bool = False
    causal: bool = False
    markov: bool = False
    confidence: bool = False
    selector: int = 0

    @property
    def spec_type(self) -> str:
        """The speculation type that the file is for."""
        return "draft-dspark" if self.markov else "draft-dflash"

    @property
    def first_row(self) -> int:
        """The row of the block that holds the first prediction."""
        return 0 if self.from_anchor else 1

    @property
    def n_max(self) -> int:
        """Most tokens that a draft can have.

        On longer blocks DSpark's bias is left out of the logits, and DFlash 2 has no lattice.
        """
        most = self.block_size - self.first_row
        return min(most, MOST_CHAINED) if self.markov else most

    def reads_states(self, p_min: float) -> bool:
        """Whether drafting needs the head's own states: confidences, or a lattice."""
        return self.selector > 0 or (self.markov and p_min > 0.0)

    def settings_problem(
        self, p_min: float, type_k: str = "f16", type_v: str = "f16"
    ) -> str | None:
        """Why this head cannot be used with these settings; None if it can."""
        for name, kind in (("type_k", type_k), ("type_v", type_v)):
            if kind not in CACHE_TYPES:
                return (
                    f"{self.spec_type} does not work with {name} {kind}: what it takes from the "
                    f"target is lost in a quantized cache; possible are {', '.join(CACHE_TYPES)}"
                )
        if self.markov and p_min > 0.0 and not self.confidence and not self.selector:
            return f"p_min is {p_min}, but the head has no confidence to compare it with"
        return None


def block_format(head: ModelInfo) -> BlockFormat:
    """What the header of a DFlash or DSpark file says."""
    names = {tensor.name for tensor in head.tensors}
    markov = "markov_w1.weight" in names
    has_confidence = _told(head, "has_confidence_head", "conf_proj.weight" in names)
    selector = head.arch_uint("selector_top_k", 0) or 0
    mask = head.uint("tokenizer.ggml.mask_token_id", -1)
    return BlockFormat(
        block_size=head.arch_uint("block_size", DEFAULT_BLOCK_SIZE) or 0,
        mask=-1 if mask is None else mask,
        from_anchor=markov and _told(head, "sample_from_anchor", True),
        causal=_told(head, "attention.causal", False),
        markov=markov,
        confidence=has_confidence and "conf_proj.weight" in names,
        selector=selector if "selector_hidden.weight" in names else 0,
    )


def block_problem(target: ModelInfo, head: ModelInfo) -> str | None:
    """Why the DFlash or DSpark head ``head`` cannot draft for ``target``; None if it can."""
    form = block_format(head)
    layers = wanted_states(form.spec_type, target, head)
    if not layers:
        return f"{head.name} names no layers of its target"
    problem = state_problem(target.arch or "", target.n_layer or 0, layers)
    if problem is not None:
        return problem
    if head.n_embd != target.n_embd:
        return f"the states differ in width: target {target.n_embd}, head {head.n_embd}"
    return _layout_problem(head, form) or _lent_problem(target, head, form.mask)


def _layout_problem(head: ModelInfo, form: BlockFormat) -> str | None:
    """Files that libllama would abort on, or compute otherwise than they were trained."""
    if head.arch_uint("hyper_connection.count", 0):
        return f"{head.name} has DeepSeek-V4 layers, which are not available in this version"
    if form.markov and head.arch_uint("block_size") is None:
        return f"{head.name} does not say how large its blocks are"
    if form.n_max < 1:
        return f"{head.name} has blocks of {form.block_size} tokens, which hold no draft"
    size = head.vocab_size or 0
    if not 0 <= form.mask < size:
        return f"{head.name} has no mask token in its vocabulary of {size}"
    keys = head.arch_uint("attention.key_length")
    values = head.arch_uint("attention.value_length")
    if keys != values:
        return f"{head.name} has keys of {keys} values and values of {values}"
    wanted = head.arch_uint("selector_top_k", 0) or 0
    if wanted != form.selector or wanted > size:
        return f"{head.name} is a DFlash 2 head with {wanted} candidates but no selector for them"
    if form.selector and form.markov:
        return f"{head.name} has both a Markov head and a selector"
    return None


def _lent_problem(target: ModelInfo, head: ModelInfo, mask: int) -> str | None:
    """Embeddings or output that the target lends have its number of rows."""
    problem = shared_problem(target, head)
    if problem is not None:
        return problem
    names = {tensor.name for tensor in head.tensors}
    if {"token_embd.weight", "output.weight"} <= names:
        return None
    if "token_embd.weight" in names and "d2t" not in names:
        return None  # its output is its embeddings
    if head.vocab_size != target.vocab_size:
        return (
            f"{head.name} uses the target's vocabulary, but the sizes differ: target "
            f"{target.vocab_size}, head {head.vocab_size}"
        )
    return None


def _told(head: ModelInfo, key: str, otherwise: bool) -> bool:
    """A flag of the head's own, as llama.cpp compares it: with the word "true"."""
    value = head.metadata.get(f"{head.arch}.{key}")
    return otherwise if value is None else value is True or value == "true"
