"""The target on its own: quantization, context and placement, before anybody thinks of a draft.

The ladder is searched in tiers. A: everything on the GPUs (experts may stay in host memory), a
quantization at or above the floor. B: the lowest of those, with fewer layers on the GPUs. C: below
the floor, everything on the GPUs, and only if ``min_quant`` allows it. In the first tier that has
anything the highest quantization is taken. ``prefer`` "quality" makes one tier of A and B.

A single file, or one that is named, is its user's choice: no floor holds for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from gguf_spec.memory import CPU, MemoryParams
from gguf_spec.planning.machine import Machine, summed
from gguf_spec.planning.placement import Fit, Search, is_whole
from gguf_spec.planning.quants import DEFAULT_FLOOR, at_least, floor_bits, layer_bits
from gguf_spec.planning.types import Rung, TargetPlan, Tier, Wish

DEFAULT_N_CTX = 8192
STEP = 256  # llama.cpp pads a context to that


@dataclass(frozen=True, slots=True)
class Ladder:
    """The rungs in order, the best first, and who may be chosen: ``upper`` are those at or above
    the floor, ``lower`` those below it that the user allows."""

    rungs: tuple[Rung, ...]
    bits: tuple[float, ...]
    upper: tuple[Rung, ...]
    lower: tuple[Rung, ...]

    @classmethod
    def of(cls, rungs: Sequence[Rung], min_quant: str | None) -> Ladder:
        """Sort ``rungs`` by bits per weight of their layers; of equal ones the larger is better,
        and of equally large ones the name decides, so that their order here does not.

        Raises:
            UsageError: ``min_quant`` is no quantization.
        """
        by_bits = sorted(
            ((layer_bits(rung.info), rung) for rung in rungs),
            key=lambda pair: (pair[0], pair[1].info.file_bytes, pair[1].ref),
            reverse=True,
        )
        every = tuple(rung for _, rung in by_bits)
        bits = tuple(bits for bits, _ in by_bits)
        least = min_quant or DEFAULT_FLOOR
        floor = least if floor_bits(least) > floor_bits(DEFAULT_FLOOR) else DEFAULT_FLOOR
        if len(every) == 1:
            return cls(every, bits, every, ())
        names = [(rung.info.quant, value) for value, rung in by_bits]

        def above(name: str) -> list[Rung]:
            return [r for b, r in by_bits if at_least(r.info.quant, b, name, names)]

        upper = above(floor)
        lower = [rung for rung in above(least) if rung not in upper] if min_quant else []
        return cls(every, bits, tuple(upper), tuple(lower))

    @property
    def lowest(self) -> Rung | None:
        """The lowest rung that may be chosen."""
        return (*self.upper, *self.lower)[-1] if self.upper or self.lower else None


def plan_target(ladder: Ladder, machine: Machine, wish: Wish) -> TargetPlan | None:
    """The best plan for the target alone; None if nothing fits.

    A context that was asked for as a number is kept. Another one ("max", or none) shrinks when
    nothing fits, and then the lowest quantization decides how long it can be.
    """
    for tier, rung, fit, params in _by_tier(ladder, machine, wish):
        if fit.fits:
            n_ctx = params.n_ctx
            return TargetPlan(rung, tier, n_ctx, params, fit.placement, fit.items)
    if isinstance(wish.n_ctx, int) or ladder.lowest is None:
        return None
    return _shrunk(ladder, ladder.lowest, machine, wish)


def search(rung: Rung, n_ctx: int, machine: Machine, wish: Wish) -> Search:
    """The search for a placement of ``rung`` with a context of ``n_ctx`` tokens."""
    return Search(rung.info, replace(wish.params, n_ctx=n_ctx), machine, wish)


def wanted_n_ctx(rung: Rung, wish: Wish) -> int:
    """The context that is asked for, in tokens."""
    trained = max(rung.info.n_ctx_train or 0, 0)
    if isinstance(wish.n_ctx, int):
        return wish.n_ctx
    if wish.n_ctx == "max":
        return trained or DEFAULT_N_CTX
    return min(trained or DEFAULT_N_CTX, DEFAULT_N_CTX)


def tier_of(rung: Rung, fit: Fit, ladder: Ladder, asked: Search) -> Tier:
    """The tier that a placement belongs to."""
    if rung not in ladder.upper:
        return "C"
    whole = not asked.machine.gpus or is_whole(fit.placement, asked.n_all)
    return "A" if whole else "B"


def fit_in_tier(tier: Tier, asked: Search) -> Fit:
    """The best placement that ``tier`` allows; it need not fit."""
    fit = asked.whole()
    if tier == "B" and not fit.fits:
        return asked.partial() or fit
    return fit


def _by_tier(
    ladder: Ladder, machine: Machine, wish: Wish
) -> Iterator[tuple[Tier, Rung, Fit, MemoryParams]]:
    """Placements to be tried, in order."""
    for rung in ladder.upper:
        asked = search(rung, wanted_n_ctx(rung, wish), machine, wish)
        fit = asked.whole()
        yield tier_of(rung, fit, ladder, asked), rung, fit, asked.params
        if wish.prefer == "quality" and (partial := asked.partial()) is not None:
            yield "B", rung, partial, asked.params
    for rung in ladder.upper[-1:]:
        asked = search(rung, wanted_n_ctx(rung, wish), machine, wish)
        if (partial := asked.partial()) is not None:
            yield "B", rung, partial, asked.params
    for rung in ladder.lower:
        asked = search(rung, wanted_n_ctx(rung, wish), machine, wish)
        yield "C", rung, asked.whole(), asked.params


def _shrunk(ladder: Ladder, rung: Rung, machine: Machine, wish: Wish) -> TargetPlan | None:
    """``rung`` with the longest context that fits, anywhere."""
    least, most = 1, -(-wanted_n_ctx(rung, wish) // STEP)
    best: TargetPlan | None = None
    while least < most:
        middle = (least + most) // 2
        asked = search(rung, middle * STEP, machine, wish)
        fit = asked.whole()
        if not fit.fits:
            fit = asked.partial() or fit
        if fit.fits:
            tier = tier_of(rung, fit, ladder, asked)
            best = TargetPlan(
                rung, tier, middle * STEP, asked.params, fit.placement, fit.items, shrunk=True
            )
            least = middle + 1
        else:
            most = middle
    return best


def closest(ladder: Ladder, machine: Machine, wish: Wish) -> TargetPlan:
    """What misses the least where nothing fits."""
    rungs = (*ladder.upper, *ladder.lower) or ladder.rungs
    found = []
    for rung in rungs:
        asked = search(rung, wanted_n_ctx(rung, wish), machine, wish)
        fit = fit_in_tier("B", asked)
        tier = tier_of(rung, fit, ladder, asked)
        found.append(
            TargetPlan(rung, tier, asked.params.n_ctx, asked.params, fit.placement, fit.items)
        )
    return min(found, key=lambda target: summed(machine.missing(target.items)))


def ways_out(ladder: Ladder, machine: Machine, wish: Wish) -> list[str]:
    """What would fit where this does not: a shorter context, another quantization; in words."""
    ways = []
    if isinstance(wish.n_ctx, int) and ladder.lowest is not None:
        shorter = _shrunk(ladder, ladder.lowest, machine, wish)
        if shorter is not None:
            # Free memory changes from one moment to the next: not the very last token of it.
            n_ctx = max(shorter.n_ctx * 31 // 32 // STEP * STEP, min(shorter.n_ctx, STEP))
            ways.append(f"-c {n_ctx} would fit ({shorter.rung.info.quant})")
    if len(ladder.rungs) > 1:
        below = [rung for rung in ladder.rungs if rung not in (*ladder.upper, *ladder.lower)]
        for rung in below:
            asked = search(rung, wanted_n_ctx(rung, wish), machine, wish)
            if fit_in_tier("B", asked).fits:
                ways.append(f"--min-quant {rung.info.quant} would fit")
                break
    if wish.n_gpu_layers is not None and machine.gpus:
        free = replace(wish, n_gpu_layers=None, n_cpu_moe=None)
        if plan_target(ladder, machine, free) is not None:
            ways.append("-g auto would fit")
    return ways


def shortage(missing: dict[str, int]) -> str:
    """What is missing, in words."""
    names = {CPU: "host memory"}
    return ", ".join(
        f"{n_bytes / 2**30:.2f} GiB of {names.get(name, name)}"
        for name, n_bytes in sorted(missing.items())
    )
