"""Drafts beside a target that is settled: admitted out of what remains, or not at all.

A bundle is everything that a draft costs: its weights, cache and buffers, and by how much it makes
the target's buffers grow (snapshots of recurrent states, rows of logits, hidden states). It is
admitted if target and bundle together fit into every memory. What shrinks to get there is the
bundle alone: first the rows it computes at once, then the type of its cache, the length of drafts,
its quantization, and at last its place on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from gguf_spec.memory import (
    CPU,
    MemoryItem,
    MemoryParams,
    Placement,
    cache_problem,
    draft_context,
    draft_deltas,
    draft_items,
    facts,
    with_draft,
)
from gguf_spec.memory.bill import BLOCKS
from gguf_spec.planning.machine import Machine, summed
from gguf_spec.planning.types import Bundle, DraftOffer, Rung, TargetPlan, Verdict

LEAST_UBATCH = 32
_SMALLER_CACHE = "q8_0"
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a draft would go: a rung of it and a placement (None: n-grams)."""

    rung: Rung | None
    placement: Placement | None
    words: str = ""


@dataclass(frozen=True, slots=True)
class Admission:
    """One machine with a target, to which drafts are admitted one after the other.

    ``items`` is everything admitted so far, ``params`` the target's context with those drafts.
    """

    machine: Machine
    target: TargetPlan
    items: tuple[MemoryItem, ...]
    params: MemoryParams

    @classmethod
    def of(cls, machine: Machine, target: TargetPlan) -> Admission:
        return cls(machine, target, target.items, target.params)

    def judge(self, offer: DraftOffer) -> Verdict:
        """Admit ``offer`` at the largest it can be, or say what is missing for the least of it."""
        if offer.problem is not None:
            return Verdict(offer, None, {}, offer.problem)
        refused: list[Bundle] = []
        for place in self._places(offer):
            least = self._smallest(offer, place, 1)
            if least is None:
                continue
            if self._missing(least):
                refused.append(least)
                continue
            bundle = self._largest(offer, place)
            return Verdict(offer, bundle, {}, _admitted(bundle))
        if not refused:
            return Verdict(offer, None, {}, "cannot have these cache types")
        least = min(refused, key=lambda one: summed(self._missing(one)))
        missing = self._missing(least)
        return Verdict(offer, None, missing, self._refused(least, missing), least)

    def with_bundle(self, bundle: Bundle) -> Admission:
        """What there is after ``bundle`` is admitted."""
        info = bundle.rung.info if bundle.rung is not None else None
        target = self.target.rung.info
        params = with_draft(bundle.offer.method, bundle.n_max, info, target, self.params)
        return replace(self, items=(*self.items, *bundle.items), params=params)

    def bundle(
        self, offer: DraftOffer, place: _Place, n_max: int, types: tuple[str, str], n_ubatch: int
    ) -> Bundle:
        """The bundle of one choice of everything."""
        target, hardware = self.target, self.machine.hardware
        info = place.rung.info if place.rung is not None else None
        method, changes = offer.method, _changes(offer, place, n_max, types, n_ubatch)
        deltas = draft_deltas(
            method, n_max, info, target.rung.info, self.params, target.placement, hardware
        )
        if info is None or place.placement is None:
            return Bundle(offer, None, n_max, None, None, tuple(deltas), changes)
        params = draft_context(
            method, target.params, n_max=n_max, n_ubatch=n_ubatch, n_ctx=offer.n_ctx
        )
        params = replace(params, type_k=types[0], type_v=types[1])
        items = draft_items(method, info, target.rung.info, params, place.placement, hardware)
        return Bundle(offer, place.rung, n_max, params, place.placement, (*items, *deltas), changes)

    def _missing(self, bundle: Bundle) -> dict[str, int]:
        return self.machine.missing((*self.items, *bundle.items))

    def _places(self, offer: DraftOffer) -> Iterator[_Place]:
        """Where ``offer`` may go, the best first: every quantization on GPUs, then beside them."""
        if not offer.rungs:
            yield _Place(None, None)
            return
        if offer.inside:
            yield _Place(self.target.rung, self.target.placement)
            return
        for rung in offer.rungs:
            for name in self._gpus(offer):
                n_all = facts(rung.info).n_layer_all + 1
                n_gpu = n_all if offer.n_gpu_layers is None else min(offer.n_gpu_layers, n_all)
                yield _Place(rung, Placement(n_gpu_layers=n_gpu, devices=(name,)))
        if self._may_leave_gpus(offer):
            words = "its weights on the CPU" if self.machine.gpus else ""
            for rung in offer.rungs:
                yield _Place(rung, Placement(n_gpu_layers=0), words)

    def _gpus(self, offer: DraftOffer) -> list[str]:
        """The devices for a draft, the emptiest first; none for one that shall not be on any."""
        if offer.n_gpu_layers == 0:
            return []
        remaining = self.machine.remaining(self.items)
        used = self.target.placement.devices
        names = [gpu.name for gpu in self.machine.gpus if used is None or gpu.name in used]
        allowed = [name for name in names if not offer.devices or name in offer.devices]
        return sorted(allowed, key=lambda name: -remaining[name])

    def _may_leave_gpus(self, offer: DraftOffer) -> bool:
        """Models of their own can draft on the CPU. Heads read the target's states where they are,
        and most borrow its output: they stay with it."""
        if not self.machine.gpus or offer.n_gpu_layers == 0:
            return True
        if self.machine.unified is not None:
            return False
        return offer.method == "draft-simple" and offer.n_gpu_layers is None

    def _smallest(self, offer: DraftOffer, place: _Place, n_max: int) -> Bundle | None:
        """The least that drafts of ``n_max`` tokens cost there. A smaller type need not be less:
        CUDA unpacks a quantized cache, which takes room, too."""
        n_ubatch = _ubatches(offer, n_max)[-1]
        found = (
            self.bundle(offer, place, n_max, types, n_ubatch) for types in self._types(offer, place)
        )
        return min(found, key=lambda one: (summed(self._missing(one)), one.bytes), default=None)

    def _largest(self, offer: DraftOffer, place: _Place) -> Bundle:
        """The best that fits there, given that the smallest does: the longest drafts for which
        anything fits, the best cache for these, the most rows at once for that."""
        short, long = 1, max(offer.n_max, 1)
        while short < long:  # the longest drafts whose smallest bundle fits
            middle = (short + long + 1) // 2
            least = self._smallest(offer, place, middle)
            if least is None or self._missing(least):
                long = middle - 1
            else:
                short = middle
        for types in self._types(offer, place):
            for n_ubatch in _ubatches(offer, short):
                bundle = self.bundle(offer, place, short, types, n_ubatch)
                if not self._missing(bundle):
                    return bundle
        raise AssertionError("the smallest bundle fits, and no other was asked for")

    def _types(self, offer: DraftOffer, place: _Place) -> list[tuple[str, str]]:
        """Types of the draft's cache that its model can have, the best first."""
        asked = (offer.type_k, offer.type_v)
        if place.rung is None:
            return [asked]
        smaller = (_SMALLER_CACHE, _SMALLER_CACHE)
        known = facts(place.rung.info)
        found = [asked]
        if "types" not in offer.fixed and asked == ("f16", "f16") and offer.method not in BLOCKS:
            found.append(smaller)
        flash_attn = self.target.params.flash_attn
        return [
            (k, v)
            for k, v in found
            if cache_problem(known, MemoryParams(0, type_k=k, type_v=v, flash_attn=flash_attn))
            is None
        ]

    def _refused(self, least: Bundle, missing: dict[str, int]) -> str:
        left = self.machine.remaining(self.items)
        per_memory = self.machine.used(least.items)
        parts = [
            f"{mib(per_memory[name])} on {_told(name)}, where {mib(max(left[name], 0))} remain"
            for name in sorted(missing)
        ]
        return f"needs at least {', '.join(parts)}: {mib(summed(missing))} are missing"


def admit(
    offers: Sequence[DraftOffer], target: TargetPlan, machine: Machine, *, one: bool
) -> tuple[tuple[Bundle, ...], tuple[Verdict, ...]]:
    """Admit ``offers`` in their order, each out of what the earlier ones leave.

    ``one``: of draft models and heads the first that fits is enough.
    """
    state = Admission.of(machine, target)
    bundles: list[Bundle] = []
    verdicts: list[Verdict] = []
    for offer in offers:
        first = next((b.offer.method for b in bundles if b.offer.is_neural), None)
        if one and offer.is_neural and first is not None and offer.problem is None:
            verdicts.append(Verdict(offer, None, {}, f"not needed: {first} is admitted"))
            continue
        verdict = state.judge(offer)
        verdicts.append(verdict)
        if verdict.bundle is not None:
            bundles.append(verdict.bundle)
            state = state.with_bundle(verdict.bundle)
    return tuple(bundles), tuple(verdicts)


def rebuilt(bundle: Bundle, target: TargetPlan, machine: Machine) -> Bundle:
    """The same choice beside another target: what the draft would cost there."""
    state = Admission.of(machine, target)
    rung, placement = bundle.rung, bundle.placement
    if bundle.offer.inside:
        rung, placement = target.rung, target.placement
    types, n_ubatch = ("f16", "f16"), bundle.offer.n_ubatch
    if bundle.params is not None:
        types, n_ubatch = (bundle.params.type_k, bundle.params.type_v), bundle.params.n_ubatch
    return state.bundle(bundle.offer, _Place(rung, placement), bundle.n_max, types, n_ubatch)


def _ubatches(offer: DraftOffer, n_max: int) -> list[int]:
    """Rows at once: from what is usual by halves to the least that makes sense. Blocks of DFlash
    and DSpark have to fit into one."""
    least = max(LEAST_UBATCH, n_max + 1) if offer.method in BLOCKS else LEAST_UBATCH
    found = [max(offer.n_ubatch, 1)]
    while "n_ubatch" not in offer.fixed and found[-1] > least:
        found.append(max(found[-1] // 2, least))
    return found


def _changes(
    offer: DraftOffer, place: _Place, n_max: int, types: tuple[str, str], n_ubatch: int
) -> tuple[str, ...]:
    """What was shrunk, in words."""
    found = []
    if n_max < offer.n_max:
        found.append(f"drafts of {n_max} instead of {offer.n_max} tokens")
    if place.rung is not None:
        if not offer.inside and place.rung is not offer.rungs[0]:
            best = offer.rungs[0].info.quant
            found.append(f"{place.rung.info.quant} instead of {best}")
        if types != (offer.type_k, offer.type_v):
            found.append(f"a cache of {types[0]}")
        if n_ubatch < offer.n_ubatch:
            found.append(f"{n_ubatch} rows at once instead of {offer.n_ubatch}")
    if place.words:
        found.append(place.words)
    return tuple(found)


def _admitted(bundle: Bundle) -> str:
    kinds: dict[str, int] = {}
    for item in bundle.items:
        kinds[item.kind] = kinds.get(item.kind, 0) + item.bytes
    parts = ", ".join(f"{kind.replace('_', ' ')} {mib(n)}" for kind, n in kinds.items() if n)
    text = f"fits: {mib(bundle.bytes)}" + (f" ({parts})" if parts else "")
    return text + (f"; with {', '.join(bundle.changes)}" if bundle.changes else "")


def _told(memory: str) -> str:
    return "the host" if memory == CPU else memory


def mib(n_bytes: int) -> str:
    """Bytes as MiB, or GiB from one on."""
    if abs(n_bytes) >= 1 << 30:
        return f"{n_bytes / 2**30:.2f} GiB"
    return f"{n_bytes / _MIB:.1f} MiB"
