"""Can one model draft for another? llama.cpp's rules, told from the two headers alone.

The rule for separate draft models is ``common_speculative_are_compatible`` in llama.cpp's
common/speculative.cpp. There a refusal is a line in the debug log; here it names the numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gguf_spec.block_format import block_problem
from gguf_spec.header import ModelInfo
from gguf_spec.loadable import VOCAB_TYPES, token_texts
from gguf_spec.pairing_heads import eagle3_problem
from gguf_spec.pairing_mtp import mtp_problem

AVAILABLE_DRAFT_TYPES = frozenset({
    "draft-simple", "draft-mtp", "draft-eagle3", "draft-dflash", "draft-dspark",
})  # fmt: skip

MAX_SIZE_DIFFERENCE = 128  # tokens: SPEC_VOCAB_MAX_SIZE_DIFFERENCE
FIRST_CHECKED_TOKEN = 5  # SPEC_VOCAB_CHECK_START_TOKEN_ID; below are special tokens

#: Role of a file -> the speculation type it would be a drafter for.
ROLE_TYPES = {
    "draft-eagle3": "draft-eagle3",
    "draft-dflash": "draft-dflash",
    "draft-dspark": "draft-dspark",
    "draft-mtp": "draft-mtp",
    "assistant": "draft-mtp",
    "target": "draft-simple",
}
#: What has to be right besides the vocabularies, by speculation type.
HEAD_RULES: dict[str, Callable[[ModelInfo, ModelInfo], str | None]] = {
    "draft-mtp": mtp_problem,
    "draft-eagle3": eagle3_problem,
    "draft-dflash": block_problem,
    "draft-dspark": block_problem,
}
#: Default bos and eos ids by tokenizer.ggml.model (llama_vocab::impl::load); None: there is none.
DEFAULT_IDS: dict[str, tuple[int | None, int | None]] = {
    "llama": (1, 2),
    "bert": (101, None),
    "gpt2": (11, 11),
    "hybriddna": (11, 11),
    "whitespace": (11, 11),
    "t5": (None, 1),
    "plamo2": (1, 2),
}
#: Pre-tokenizers that switch add_bos on unless the file says otherwise.
BOS_PRE = frozenset([
    "llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2",
    "jina-v5-nano", "tekken", "chameleon",
])  # fmt: skip
#: Pre-tokenizers of LLAMA_VOCAB_PRE_TYPE_GEMMA4, which forces add_bos whatever the file says.
FORCED_BOS_PRE = frozenset(["gemma4", "granite-embed-multi-311m"])
NO_BOS_PRE = frozenset(["glm4", "glm5", "chatglm-bpe"])


@dataclass(frozen=True, slots=True)
class Pair:
    """``type`` is the speculation type the draft file is for; None when it is no drafter at all."""

    usable: bool
    type: str | None
    reason: str


def check_pair(target: ModelInfo, draft: ModelInfo) -> Pair:
    """Can ``draft`` draft for ``target``? HeaderError if a file changed meanwhile."""
    if target.role != "target":
        return Pair(False, None, f"{target.name} is no target: its role is {target.role}")
    kind = ROLE_TYPES.get(draft.role)
    if kind is None:
        return Pair(False, None, f"{draft.name} is no drafter: its role is {draft.role}")
    if kind not in AVAILABLE_DRAFT_TYPES:
        return Pair(
            False,
            kind,
            f"{draft.name} ({draft.role}) is a drafter for {kind}, which is not available in this "
            "version of gguf-spec",
        )
    rule = HEAD_RULES.get(kind)
    reason = rule(target, draft) if rule else None
    # A head never reads a text from its start: whether one begins with bos is up to the target.
    reason = reason or _vocabulary_problem(target, draft, added=rule is None)
    if reason is not None:
        return Pair(False, kind, reason)
    return Pair(
        True,
        kind,
        f"the vocabularies agree (target {target.vocab_size} tokens, draft {draft.vocab_size})",
    )


def own_head(target: ModelInfo) -> Pair:
    """Can the MTP head in the target's own file draft for it?"""
    reason = mtp_problem(target, target)
    if reason is None:
        n = target.n_layer_nextn
        heads = "an MTP head of its own" if n == 1 else f"a chain of {n} MTP heads of its own"
        return Pair(True, "draft-mtp", f"{target.name} has {heads}")
    return Pair(False, "draft-mtp" if target.n_layer_nextn else None, reason)


def _vocabulary_problem(target: ModelInfo, draft: ModelInfo, *, added: bool) -> str | None:
    """The first rule that the two vocabularies break, or None. ``added`` compares bos and eos."""
    vocab_types = [VOCAB_TYPES.get(info.tokenizer.model or "") for info in (target, draft)]
    sizes = f"target {target.vocab_size} tokens, draft {draft.vocab_size}"
    if vocab_types[0] is None or vocab_types[0] == "NONE" or vocab_types[0] != vocab_types[1]:
        return (
            f"the tokenizers differ: target {target.tokenizer.model} ({vocab_types[0]}), "
            f"draft {draft.tokenizer.model} ({vocab_types[1]}); {sizes}"
        )
    for name, index in (("bos", 0), ("eos", 1)) if added else ():
        ours, theirs = _special(target, index), _special(draft, index)
        if ours != theirs:
            return f"{name} differs: target {_told(ours)}, draft {_told(theirs)}; {sizes}"
    if target.vocab_size is None or draft.vocab_size is None:
        return f"a vocabulary is missing: {sizes}"
    difference = abs(target.vocab_size - draft.vocab_size)
    mismatch = _first_difference(target, draft)
    if mismatch is not None:
        token, ours_text, theirs_text = mismatch
        return f"token {token} differs: target {ours_text!r}, draft {theirs_text!r}; {sizes}"
    if difference > MAX_SIZE_DIFFERENCE:
        return (
            f"the vocabularies differ by {difference} tokens, at most {MAX_SIZE_DIFFERENCE} are "
            f"allowed; {sizes}"
        )
    return None


def _special(info: ModelInfo, index: int) -> tuple[bool, int | None]:
    """(add it, its id) for bos (0) or eos (1); the id only counts when it is added.

    Defaults and overrides follow llama_vocab::impl::load.
    """
    name = ("bos", "eos")[index]
    model, pre = info.tokenizer.model or "", info.tokenizer.pre or ""
    if model == "gemma4":
        pre = "gemma4"
    kind = VOCAB_TYPES.get(model)
    if name == "bos":
        add = kind in ("SPM", "WPM") or (kind == "BPE" and pre in BOS_PRE)
    else:
        add = kind == "UGM"
    told = info.metadata.get(f"tokenizer.ggml.add_{name}_token")
    if isinstance(told, bool):
        add = told
    if name == "bos" and kind == "BPE" and pre in FORCED_BOS_PRE:
        add = True
    if not add:
        return False, None
    default = DEFAULT_IDS.get(model, (None, None))[index]
    if name == "bos" and kind == "BPE" and pre in NO_BOS_PRE:
        default = None
    size = info.vocab_size or 0
    if default is not None and default >= size:
        default = None
    token = info.uint(f"tokenizer.ggml.{name}_token_id")
    return True, token if token is not None and token < size else default


def _told(special: tuple[bool, int | None]) -> str:
    added, token = special
    return f"adds token {token}" if added else "adds none"


def _first_difference(target: ModelInfo, draft: ModelInfo) -> tuple[int, str, str] | None:
    """The first token, from 5 on, whose text differs: (id, target's text, draft's text)."""
    key = "tokenizer.ggml.tokens"
    if target.byte_order == draft.byte_order and target.raw_array(key) == draft.raw_array(key):
        return None  # the usual case, decided without splitting 262,144 strings
    ours, theirs = token_texts(target), token_texts(draft)
    end = min(len(ours), len(theirs))
    if ours[FIRST_CHECKED_TOKEN:end] == theirs[FIRST_CHECKED_TOKEN:end]:
        return None
    for token in range(FIRST_CHECKED_TOKEN, end):
        if ours[token] != theirs[token]:
            texts = [text[token].decode("utf-8", "backslashreplace") for text in (ours, theirs)]
            return token, texts[0], texts[1]
    return None
