"""Can one model draft for another? llama.cpp's rules, told from the two headers alone.

The rule for separate draft models is ``common_speculative_are_compatible`` in llama.cpp's
common/speculative.cpp. There a refusal is a line in the debug log; here it names the numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from gguf_spec.block_format import block_problem
from gguf_spec.errors import PairError
from gguf_spec.header import ModelInfo
from gguf_spec.loadable import VOCAB_TYPES, token_texts
from gguf_spec.pairing_heads import eagle3_problem
from gguf_spec.pairing_hints import Offer, head_offers, instead
from gguf_spec.pairing_mtp import mtp_problem

AVAILABLE_DRAFT_TYPES = frozenset({
    "draft-simple", "draft-mtp", "draft-eagle3", "draft-dflash", "draft-dspark",
})  # fmt: skip

MAX_SIZE_DIFFERENCE = 128  # tokens: SPEC_VOCAB_MAX_SIZE_DIFFERENCE
FIRST_CHECKED_TOKEN = 5  # SPEC_VOCAB_CHECK_START_TOKEN_ID; below are special tokens

#: Vocabularies whose tokens spell the text that was cut into them. WPM drops case and spaces, UGM
#: normalizes; TEST is for libllama's own tests.
TEXT_VOCABS = frozenset(["SPM", "BPE", "RWKV", "PLAMO2"])

#: Role of a file -> the speculation type it would be a drafter for.
ROLE_TYPES = {
    "draft-eagle3": "draft-eagle3",
    "draft-dflash": "draft-dflash",
    "draft-dspark": "draft-dspark",
    "draft-mtp": "draft-mtp",
    "assistant": "draft-mtp",
    "target": "draft-simple",
}
#: What such a file is good for, by role.
NO_DRAFTER_HINTS = {
    "mmproj": "it reads images for its model; a draft is a smaller model or a draft head",
    "adapter": "a LoRA adapter is applied to the target: --set target.lora=FILE",
    "imatrix": "it is for quantizing a model; a draft is a smaller model or a draft head",
    "controlvector": "control vectors are not available in this version",
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
    """``type`` is the speculation type the draft file is for; None when it is no drafter at all.

    ``hint`` says what would work instead, where the pair is not usable. ``other_vocabulary``:
    nothing but the vocabularies keeps the draft from being usable.
    """

    usable: bool
    type: str | None
    reason: str
    hint: str = field(default="", compare=False)
    other_vocabulary: bool = False


def check_pair(target: ModelInfo, draft: ModelInfo) -> Pair:
    """Can ``draft`` draft for ``target``? HeaderError if a file changed meanwhile."""
    if target.role != "target":
        return Pair(
            False,
            None,
            f"{target.name} is no target: its role is {target.role}",
            "name the model that is to write the text first, then its draft",
        )
    kind = ROLE_TYPES.get(draft.role)
    if kind is None:
        return Pair(
            False,
            None,
            f"{draft.name} is no drafter: its role is {draft.role}",
            NO_DRAFTER_HINTS.get(draft.role, ""),
        )
    if kind not in AVAILABLE_DRAFT_TYPES:
        return Pair(
            False,
            kind,
            f"{draft.name} ({draft.role}) is a drafter for {kind}, which is not available in this "
            "version of gguf-spec",
        )
    rule = HEAD_RULES.get(kind)
    reason = rule(target, draft) if rule else None
    if reason is not None:
        own = own_head(target).usable
        return Pair(False, kind, reason, instead(target, draft, kind, own_head=own))
    # A head never reads a text from its start: whether one begins with bos is up to the target.
    reason = _vocabulary_problem(target, draft, added=rule is None)
    if reason is not None:
        prints = [info.tokenizer.fingerprint or "none" for info in (target, draft)]
        reason += f" (fingerprints: target {prints[0]}, draft {prints[1]})"
        own, helps = own_head(target).usable, translation_problem(target, draft) is None
        hint = instead(target, draft, kind, own_head=own, translate=helps)
        return Pair(False, kind, reason, hint, other_vocabulary=True)
    return Pair(
        True,
        kind,
        f"the vocabularies agree (target {target.vocab_size} tokens, draft {draft.vocab_size})",
    )


def needs_translation(
    kind: str, ref: str, target: ModelInfo, draft: ModelInfo, *, allowed: bool
) -> bool:
    """Whether ``draft`` (called ``ref``) can draft as ``kind`` for ``target`` in its own tokens
    only, and that is ``allowed``.

    Raises:
        PairError: it cannot draft.
    """
    pair = check_pair(target, draft)
    if pair.usable and pair.type == kind:
        return False
    other = pair.usable or pair.type not in (None, kind)
    reason = f"it is for {pair.type}, not for {kind}" if other else pair.reason
    hint = f"-d {pair.type}={ref} names it as what it is" if pair.usable else pair.hint
    if pair.other_vocabulary and pair.type == kind and allowed:
        problem = translation_problem(target, draft)
        if problem is None:
            return True
        reason = f"{reason}; spec.translate does not help: {problem}"
    raise PairError(f"{ref} cannot draft for this target: {reason}", hint=hint)


def translation_problem(target: ModelInfo, draft: ModelInfo) -> str | None:
    """Why drafts cannot be translated from ``draft``'s vocabulary to ``target``'s through the text;
    None if they can."""
    if draft.role != "target":
        return (
            f"{draft.name} ({draft.role}) computes on the target's own tokens, only draft models "
            "can be translated"
        )
    for info in (target, draft):
        kind = VOCAB_TYPES.get(info.tokenizer.model or "")
        if kind is None or kind == "NONE":
            return f"{info.name} has no vocabulary ({info.tokenizer.model})"
        if kind not in TEXT_VOCABS:
            return (
                f"the {info.tokenizer.model} tokenizer ({kind}) of {info.name} does not give back "
                "the text that it was given"
            )
    return None


def own_head(target: ModelInfo) -> Pair:
    """Can the MTP head in the target's own file draft for it?"""
    reason = mtp_problem(target, target)
    if reason is None:
        n = target.n_layer_nextn
        heads = "an MTP head of its own" if n == 1 else f"a chain of {n} MTP heads of its own"
        return Pair(True, "draft-mtp", f"{target.name} has {heads}")
    return Pair(False, "draft-mtp" if target.n_layer_nextn else None, reason)


def offers(target: ModelInfo) -> tuple[Offer, ...]:
    """Which kinds of drafts a target can have, and why not the others; none for other roles."""
    if target.role != "target":
        return ()
    own = own_head(target)
    made = [Offer("draft-simple", "file", "with a smaller model that has the same tokenizer")]
    for offer in head_offers(target):
        if offer.type == "draft-mtp" and own.usable:
            made.append(Offer("draft-mtp", "alone", own.reason))
        elif offer.type == "draft-mtp" and offer.how == "file":
            made.append(Offer("draft-mtp", "file", f"{own.reason}; {offer.reason}"))
        else:
            made.append(offer)
    return tuple(made)


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
