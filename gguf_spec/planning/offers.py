"""From headers to offers: what could draft for a target, and as what. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from gguf_spec.block_format import block_format
from gguf_spec.header import ModelInfo
from gguf_spec.pairing import HEAD_RULES, ROLE_TYPES, Pair, check_pair, own_head
from gguf_spec.planning.quants import layer_bits
from gguf_spec.planning.types import DraftOffer, Origin, Rung

#: In which order methods are tried where nobody says: what costs least for what it brings first.
METHODS = (
    "draft-mtp", "draft-eagle3", "draft-dflash", "draft-dspark", "draft-simple", "ngram-simple",
)  # fmt: skip
DEFAULT_N_MAX = 3  # llama.cpp's --spec-draft-n-max
#: The longest drafts of n-gram types with the parameters that profiles have by default.
NGRAM_N_MAX = {
    "ngram-simple": 48,  # of auto one less
    "ngram-map-k": 48,
    "ngram-map-k4v": 48,
    "ngram-mod": 64,
    "ngram-cache": 8,
}
_BLOCKS = ("draft-dflash", "draft-dspark")


def usual_ubatch(kind: str) -> int:
    """Rows that a drafter of type ``kind`` computes at once, where nobody says otherwise.

    The graphs of EAGLE-3, DFlash and DSpark have logits of all of their rows, and so have two of
    libllama's buffers.
    """
    return 128 if kind in ("draft-eagle3", *_BLOCKS) else 512


def ngram_offer(kind: str, *, ceiling: int | None = None) -> DraftOffer:
    """An n-gram drafter, with drafts of up to ``ceiling`` tokens."""
    usual = NGRAM_N_MAX[kind]
    return DraftOffer(kind, n_max=usual if ceiling is None else min(usual, ceiling))


def own_offer(target: Rung, *, ceiling: int | None = None) -> DraftOffer:
    """The MTP head in the target's own file, if it has one."""
    head = own_head(target.info)
    n_max = DEFAULT_N_MAX if ceiling is None else ceiling
    problem = None if head.usable else head.reason
    return DraftOffer(
        "draft-mtp", (target,), inside=True, origin="sibling", n_max=n_max, n_ubatch=512,
        problem=problem,
    )  # fmt: skip


def file_offers(
    target: ModelInfo, files: Sequence[Rung], origin: Origin, *, ceiling: int | None = None
) -> list[DraftOffer]:
    """Offers of ``files`` in the order of METHODS; files of one method that are quantizations of
    the same draft make one offer."""
    groups: dict[tuple[object, ...], list[Rung]] = {}
    for file in files:
        info = file.info
        key = (ROLE_TYPES.get(info.role), info.arch, info.n_layer, info.n_embd, info.vocab_size)
        groups.setdefault(key, []).append(file)
    offers = [_offer(target, group, origin, ceiling) for group in groups.values()]
    return sorted(offers, key=_rank)


def _rank(offer: DraftOffer) -> tuple[int, int]:
    """Methods in their order; of several draft models the smallest comes first."""
    order = METHODS.index(offer.method) if offer.method in METHODS else len(METHODS)
    return order, offer.rungs[0].info.file_bytes if offer.rungs else 0


def _offer(
    target: ModelInfo, group: Sequence[Rung], origin: Origin, ceiling: int | None
) -> DraftOffer:
    rungs = tuple(sorted(group, key=lambda rung: -layer_bits(rung.info)))
    pair = _pair(target, rungs[0].info)
    kind = pair.type or ROLE_TYPES.get(rungs[0].info.role) or "draft-simple"
    n_max = DEFAULT_N_MAX if ceiling is None else ceiling
    if kind in _BLOCKS and pair.usable:
        n_max = min(n_max, block_format(rungs[0].info).n_max)
    return DraftOffer(
        kind, rungs, origin=origin, n_max=n_max, n_ubatch=usual_ubatch(kind),
        problem=None if pair.usable else pair.reason,
    )  # fmt: skip


def _pair(target: ModelInfo, draft: ModelInfo) -> Pair:
    """``check_pair``, which two headers without their vocabularies pass if these are as large:
    more cannot be known of them, and nothing more is needed to count bytes."""
    pair = check_pair(target, draft)
    bare = target.tokenizer.model == draft.tokenizer.model == "no_vocab"
    if pair.usable or not bare or pair.type is None or target.vocab_size != draft.vocab_size:
        return pair
    rule = HEAD_RULES.get(pair.type)
    problem = rule(target, draft) if rule is not None else None
    return Pair(problem is None, pair.type, problem or "neither header has its vocabulary")


def chosen(
    target: Rung,
    files: Sequence[DraftOffer],
    types: Sequence[str],
    *,
    ceiling: int | None = None,
    alone: bool = False,
) -> list[DraftOffer]:
    """The offers for spec ``types`` in their order, ("auto",) being METHODS.

    ``files`` are the offers that have files; with ``alone`` auto is about them and nothing else. A
    type for which there is nothing is an offer with a problem.
    """
    own = own_offer(target, ceiling=ceiling)
    if tuple(types) == ("auto",):
        if alone:
            return list(files)
        ngram = ngram_offer("ngram-simple", ceiling=ceiling)
        own_first = [own] if own.problem is None else []
        return sorted([*own_first, *files, ngram], key=_rank)
    found: list[DraftOffer] = []
    for kind in types:
        if kind in NGRAM_N_MAX:
            found.append(ngram_offer(kind, ceiling=ceiling))
            continue
        matching = [offer for offer in files if offer.method == kind]
        if kind == "draft-mtp" and not matching:
            matching = [own]
        if not matching and kind != "none":
            matching = [DraftOffer(kind, problem=f"there is no file for {kind}")]
        found += matching
    return found
