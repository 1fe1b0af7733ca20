"""What fits: the target first, frozen, then a draft out of what remains.

Pure: headers, a machine and a wish go in, a plan with its reasons comes out. The rules are in
``planning/``, the bytes in ``memory/``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gguf_spec.memory import CPU, MemoryItem, cache_problem, facts
from gguf_spec.planning.displace import displace, on_gpu
from gguf_spec.planning.drafts import admit, mib, rebuilt
from gguf_spec.planning.machine import Machine
from gguf_spec.planning.quants import DEFAULT_FLOOR
from gguf_spec.planning.speed import draft_speed, target_speed
from gguf_spec.planning.target import (
    Ladder,
    closest,
    fit_in_tier,
    plan_target,
    search,
    shortage,
    wanted_n_ctx,
    ways_out,
)
from gguf_spec.planning.types import (
    Bundle,
    DraftOffer,
    Judged,
    Plan,
    Rung,
    TargetPlan,
    Verdict,
    Wish,
)

__all__ = ["plan"]


def plan(
    rungs: Sequence[Rung],
    machine: Machine,
    wish: Wish,
    offers: Sequence[DraftOffer] = (),
    *,
    one: bool = True,
) -> Plan:
    """The plan for a target of which there are ``rungs`` (quantizations), at least one.

    ``offers`` are drafts in order of preference; ``one``: of draft models and heads the first that
    fits is enough. Whatever they are, the target is planned without them.

    Raises:
        UsageError: ``min_quant`` or a cache type is unknown, or the placement is impossible.
    """
    ladder = Ladder.of(rungs, wish.min_quant)
    target = plan_target(ladder, machine, wish)
    if target is None:
        nearest = closest(ladder, machine, wish)
        return Plan(
            machine, wish, False, nearest, _judged(ladder, nearest, None, machine, wish),
            reasons=_reasons(ladder, nearest, machine, wish, fits=False),
            hints=tuple(ways_out(ladder, machine, wish)),
        )  # fmt: skip
    bundles, verdicts = admit(offers, target, machine, one=one)
    reasons = list(_reasons(ladder, target, machine, wish, fits=True))
    wanted = [offer for offer in offers if offer.is_neural and offer.problem is None]
    if wish.draft_may_displace_layers and wanted and not any(on_gpu(b, machine) for b in bundles):
        moved = displace(offers, target, machine, wish, one=one)
        if moved is not None:
            target, bundles, verdicts = moved.target, moved.bundles, moved.verdicts
            reasons.append(moved.reason)
    reasons += _draft_reasons(verdicts)
    neural = next((bundle for bundle in bundles if bundle.offer.is_neural), None)
    told = _told_of(verdicts)
    rest = [bundle for bundle in bundles if bundle is not told] if told in bundles else []
    beside = tuple(item for bundle in rest for item in bundle.items)
    return Plan(
        machine=machine,
        wish=wish,
        fits=True,
        target=target,
        ladder=_judged(ladder, target, told, machine, wish, beside),
        drafts=bundles,
        verdicts=verdicts,
        reasons=tuple(reasons),
        speed=target_speed(target, machine),
        speed_with_draft=draft_speed(target, neural, machine) if neural is not None else None,
    )


def _judged(
    ladder: Ladder,
    target: TargetPlan,
    bundle: Bundle | None,
    machine: Machine,
    wish: Wish,
    beside: tuple[MemoryItem, ...] = (),
) -> tuple[Judged, ...]:
    """Every rung under the plan's tier and context, without the draft and with it; ``beside``: what
    else drafts, with the draft."""
    judged = []
    for rung, bits in zip(ladder.rungs, ladder.bits, strict=True):
        chosen = rung is target.rung
        if chosen:
            items, placement, params = target.items, target.placement, target.params
        else:
            asked = search(rung, target.n_ctx, machine, wish)
            fit = fit_in_tier(target.tier, asked)
            items, placement, params = fit.items, fit.placement, asked.params
        there = replace(target, rung=rung, items=items, placement=placement, params=params)
        draft = rebuilt(bundle, there, machine) if bundle is not None else None
        both = (*items, *(draft.items if draft is not None else ()), *beside)
        judged.append(
            Judged(
                rung=rung,
                bits=bits,
                total=sum(item.bytes for item in items),
                missing=machine.missing(items),
                draft=bundle.offer.method if bundle is not None else None,
                total_with_draft=sum(item.bytes for item in both),
                missing_with_draft=machine.missing(both),
                chosen=chosen,
            )
        )
    return tuple(judged)


def _told_of(verdicts: Sequence[Verdict]) -> Bundle | None:
    """The draft that the ladder is shown with: the first admitted model or head, else the least of
    the first refused, else what drafts at all."""
    neural = [verdict for verdict in verdicts if verdict.offer.is_neural]
    found = [v.bundle for v in neural] + [v.least for v in neural] + [v.bundle for v in verdicts]
    return next((bundle for bundle in found if bundle is not None), None)


def _reasons(
    ladder: Ladder, target: TargetPlan, machine: Machine, wish: Wish, *, fits: bool
) -> tuple[str, ...]:
    """Why the target is planned as it is."""
    found = []
    quant, info = target.rung.info.quant, target.rung.info
    where = {
        "A": "everything on the GPU" if machine.gpus else "everything in host memory",
        "B": "fewer layers on the GPU",
        "C": "below the floor, which --min-quant allows",
    }[target.tier]
    missing = machine.missing(target.items)
    if not fits and missing:
        found.append(f"{quant} comes nearest, and {shortage(missing)} are missing")
    elif not fits:
        floor = wish.min_quant or DEFAULT_FLOOR
        found.append(f"every quantization is below {floor}, the best is {quant}")
    elif len(ladder.rungs) > 1:
        found.append(f"{quant} is the highest quantization of tier {target.tier} ({where})")
    else:
        found.append(f"tier {target.tier}: {where}")
    if target.placement.n_cpu_moe:
        found.append(f"the experts of {target.placement.n_cpu_moe} layers stay in host memory")
    asked = wanted_n_ctx(target.rung, wish)
    if target.shrunk:
        found.append(f"a context of {asked} tokens fits nowhere: {target.n_ctx} is what does")
    known = facts(info)
    if not known.known:
        found.append(
            f"{info.arch or 'the architecture'} is not fully known: the numbers are a lower bound"
        )
    problem = cache_problem(known, target.params)
    if problem is not None:
        found.append(f"llama.cpp will refuse this: {problem}")
    host = sum(item.bytes for item in target.items if item.device == CPU)
    if fits and machine.mapped and not machine.unified and host > machine.host.available:
        found.append(
            f"more weights than the {mib(machine.host.available)} of free host memory: they are "
            "mapped from the file, and will be read again and again"
        )
    return tuple(found)


def _draft_reasons(verdicts: Sequence[Verdict]) -> list[str]:
    """What became of each draft that was looked at."""
    found = []
    for verdict in verdicts:
        if verdict.bundle is None and verdict.least is None and verdict.offer.problem is None:
            continue  # another one came first
        name = verdict.offer.method + (f" ({verdict.offer.ref})" if verdict.offer.ref else "")
        found.append(f"{name}: {'' if verdict.admitted else 'refused, '}{verdict.reason}")
    return found
