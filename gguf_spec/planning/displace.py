"""Layers that make room for a draft: only where the user says so, and only layers.

The target gives up as few as a draft needs, of a mixture of experts its experts first. Its
quantization and its context stay. Both expected speeds are told, because it need not pay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gguf_spec.memory import CPU
from gguf_spec.planning.drafts import admit
from gguf_spec.planning.machine import Machine
from gguf_spec.planning.placement import Fit, Search
from gguf_spec.planning.speed import draft_speed, target_speed
from gguf_spec.planning.types import Bundle, DraftOffer, Speed, TargetPlan, Verdict, Wish


@dataclass(frozen=True, slots=True)
class Displacement:
    """The target with fewer layers on the GPUs, and what was admitted instead."""

    target: TargetPlan
    bundles: tuple[Bundle, ...]
    verdicts: tuple[Verdict, ...]
    reason: str


def displace(
    offers: Sequence[DraftOffer], target: TargetPlan, machine: Machine, wish: Wish, *, one: bool
) -> Displacement | None:
    """Room for the first neural offer that some number of layers can make room for."""
    placement = target.placement
    if not machine.gpus or machine.unified or wish.n_gpu_layers is not None:
        return None
    search = Search(target.rung.info, target.params, machine, wish, placement.devices)
    steps = _steps(search, placement.n_gpu_layers, placement.n_cpu_moe)
    for offer in offers:
        if not offer.is_neural or offer.problem is not None:
            continue
        # A step further never takes more of a GPU, so the first that works is searched by halves.
        found: tuple[TargetPlan, tuple[Bundle, ...], tuple[Verdict, ...]] | None = None
        least, most = 0, len(steps)
        while least < most:
            middle = (least + most) // 2
            tried = _try(offers, offer, target, search.spread(*steps[middle]), machine, one=one)
            if tried is None:
                least = middle + 1
            else:
                found, most = tried, middle
        if found is not None:
            return Displacement(*found, _reason(target, found[0], found[1], machine))
    return None


def on_gpu(bundle: Bundle, machine: Machine) -> bool:
    """Whether a bundle keeps no weights in host memory that could be on a GPU."""
    if not bundle.offer.is_neural or not machine.gpus:
        return bundle.offer.is_neural
    return bundle.placement is None or bundle.placement.n_gpu_layers != 0


def _steps(search: Search, n_gpu: int, n_cpu_moe: int) -> list[tuple[int, int]]:
    """(layers on GPUs, layers whose experts are not), from the present ones on downwards."""
    n_layer = search.n_all - 1
    most = n_cpu_moe
    steps = []
    if search.wish.n_cpu_moe is None and search.has_movable_experts:
        steps += [(n_gpu, n) for n in range(n_cpu_moe + 1, n_layer + 1)]
        most = max(n_layer, n_cpu_moe)
    return steps + [(n, most) for n in range(n_gpu - 1, -1, -1)]


def _try(
    offers: Sequence[DraftOffer],
    wanted: DraftOffer,
    target: TargetPlan,
    fit: Fit,
    machine: Machine,
    *,
    one: bool,
) -> tuple[TargetPlan, tuple[Bundle, ...], tuple[Verdict, ...]] | None:
    """The target in another placement with ``wanted`` admitted; None if that is not possible."""
    if not fit.fits:
        # Too little host memory never gets better with fewer layers on the GPUs.
        return None
    moved = replace(
        target,
        placement=fit.placement,
        items=fit.items,
        tier="B" if target.placement.n_gpu_layers != fit.placement.n_gpu_layers else target.tier,
    )
    bundles, verdicts = admit(offers, moved, machine, one=one)
    admitted = any(b.offer is wanted and on_gpu(b, machine) for b in bundles)
    return (moved, bundles, verdicts) if admitted else None


def _reason(
    before: TargetPlan, after: TargetPlan, bundles: tuple[Bundle, ...], machine: Machine
) -> str:
    layers = before.placement.n_gpu_layers - after.placement.n_gpu_layers
    experts = after.placement.n_cpu_moe - before.placement.n_cpu_moe
    what = [f"{layers} layers"] if layers else []
    what += [f"the experts of {experts} layers"] if experts else []
    draft = next(bundle for bundle in bundles if bundle.offer.is_neural)
    plain = target_speed(before, machine)
    drafting = draft_speed(after, draft, machine)
    return (
        f"{draft.offer.method} displaces {' and '.join(what)} from the GPU to the {CPU}, as "
        f"allowed: expected {told(plain)} without, {told(drafting)} with it"
    )


def told(speed: Speed) -> str:
    """A speed in words."""
    if speed.tokens_per_second is None:
        return f"an unknown speed ({speed.why})"
    return f"{speed.tokens_per_second:.1f} tokens/s"
