"""What would work instead of a pair that does not: pure, from the two headers."""

from __future__ import annotations

from dataclasses import dataclass

from gguf_spec.header import ModelInfo
from gguf_spec.hidden_states import ASSISTED_ARCH, MTP_ARCHS, NEXTN, state_problem

#: For drafts whose tokenizer is another one.
TRANSLATE = "--set spec.translate=true lets it draft through the text"


@dataclass(frozen=True, slots=True)
class Offer:
    """Whether a target can be drafted for by a spec type: ``alone`` with what is in its own file,
    with a ``file`` beside it, or ``no``. ``reason`` is for people."""

    type: str
    how: str
    reason: str


def head_offers(target: ModelInfo) -> tuple[Offer, ...]:
    """What llama.cpp could compute on this target's states: an offer for each type of head."""
    arch, n_layer = target.arch or "", target.n_layer or 0
    mtp = state_problem(arch, n_layer, (NEXTN,))
    if mtp is None and arch not in MTP_ARCHS and arch != ASSISTED_ARCH:
        mtp = f"llama.cpp does not compute the MTP heads of {arch} models"
    inputs = state_problem(arch, n_layer, (0,))
    problems = {"draft-mtp": mtp} | dict.fromkeys(
        ("draft-eagle3", "draft-dflash", "draft-dspark"), inputs
    )
    return tuple(
        Offer(kind, "no", problem)
        if problem is not None
        else Offer(kind, "file", f"with a head that was made for {target.name}")
        for kind, problem in problems.items()
    )


def made_for(head: ModelInfo, kind: str) -> str:
    """What target a draft head was made for, as far as its header says."""
    width = head.arch_uint("target_hidden_size") if kind == "draft-eagle3" else head.n_embd
    layers = head.read_numbers(f"{head.arch}.target_layers")
    told = f"states of {width} values"
    if layers:
        told += f", layers {', '.join(map(str, layers))}"
    if head.tokenizer.fingerprint:
        told += f", tokenizer {head.tokenizer.fingerprint}"
    return told


def instead(
    target: ModelInfo, draft: ModelInfo, kind: str, *, own_head: bool, translate: bool = False
) -> str:
    """What can be done where ``draft`` cannot draft for ``target`` as ``kind``. ``translate``:
    its drafts could be translated through the text."""
    if kind == "draft-simple":
        other = f"choose a draft with the target's tokenizer ({target.tokenizer.fingerprint})"
        more = f", or {TRANSLATE}" if translate else ""
        return f"{other}{more}; {_without_file(own_head)}"
    offer = next(offer for offer in head_offers(target) if offer.type == kind)
    if offer.how == "no":
        others = [offer.type for offer in head_offers(target) if offer.how != "no"]
        possible = ", ".join(["draft-simple (a smaller model with the same tokenizer)", *others])
        return (
            f"with a file {possible} can draft for {target.arch} models; {_without_file(own_head)}"
        )
    return (
        f"the file was made for {made_for(draft, kind)}; take a {kind} file made for "
        f"{target.name}; {_without_file(own_head)}"
    )


def _without_file(own_head: bool) -> str:
    types = "draft-mtp and n-grams need" if own_head else "n-grams need"
    return f"{types} no file (leave -d/--draft out)"
