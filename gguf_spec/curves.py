"""Measuring what batches cost on this machine, and remembering it.

A short warm-up times a few widths once for each model, build, device and number of threads. What
is kept are ratios to a single token. A curve taken in a bad minute would mislead every later run:
so a kept one is held against two quick measurements when it is loaded, and it expires.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from statistics import median
from time import perf_counter

from gguf_spec.context import ModelContext, Run
from gguf_spec.control.costs import TIERS, CostCurve
from gguf_spec.errors import InputError
from gguf_spec.verify_store import replace_json

BUDGET_SECONDS = 1.0
EXPIRES = timedelta(days=30)
_ORDER = (4, 2, 8, 3, 16, 6, 12, 5, 24, 32, 48, 64)
_REPEATS = 3
_CHECKED = 4  # the width that a kept curve is checked at
_AGREES = 1.3  # times more or less is the noise of a few decodes
_LARGEST = 1 << 16


def measured_curve(
    target: ModelContext, path: Path | None, *, budget: float = BUDGET_SECONDS
) -> CostCurve:
    """The curve of ``target``: the one kept at ``path`` if it still holds, or a new one. The first
    sequence is cleared."""
    begun = perf_counter()
    seconds = {1: 0.0}
    for _ in range(2):  # the first decodes find pages missing and graphs unbuilt
        seconds[1] = _time(target, 1, 1)
    seconds[1] = _time(target, 1, _REPEATS)
    kept = _load(path)
    if kept is not None and _agrees(target, kept[0], seconds):
        kept[0].base = seconds[1]
        target.clear(0)
        return kept[0]
    _measure(target, seconds, budget - (perf_counter() - begun))
    curve = CostCurve()
    curve.set_curve(0, seconds)
    target.clear(0)
    if path is not None:
        save_curve(path, curve)
    return curve


def save_curve(path: Path, curve: CostCurve, measured: str | None = None) -> None:
    """Keep ``curve``, of which the warm-up took place at ``measured`` (now, if that is None). That
    it cannot be kept is no reason not to go on."""
    measured = measured or datetime.now(timezone.utc).isoformat(timespec="seconds")
    try:
        replace_json(path, {"measured": measured, "ratios": curve.record()})
    except InputError:
        return


def keep_learned(path: Path, curve: CostCurve) -> bool:
    """Keep what real steps have added to the curve at ``path``: deeper contexts, other widths. But
    only if they agree with the warm-up wherever it has measured; a program that took the processor
    away, or a GPU that throttled, is not to be remembered. The warm-up's date stays, so that what
    is learned does not put off its expiry. Whether it was kept."""
    kept = _load(path)
    if kept is None or curve.record() == kept[0].record():
        return False
    before, measured = kept
    for width, ratio in before.known().items():
        if not 1.0 / _AGREES <= curve.ratio(width) / ratio <= _AGREES:
            return False
    save_curve(path, curve, measured)
    return True


def _load(path: Path | None) -> tuple[CostCurve, str] | None:
    """A kept curve that has not expired, and when it was measured."""
    if path is None:
        return None
    try:
        with path.open("rb") as file:
            record = json.loads(file.read(_LARGEST))
        measured = str(record["measured"])
        age = datetime.now(timezone.utc) - datetime.fromisoformat(measured)
        curve = CostCurve.from_record(record["ratios"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    if not timedelta(0) <= age < EXPIRES or len(curve.known()) < 2:
        return None
    return curve, measured


def _agrees(target: ModelContext, kept: CostCurve, seconds: dict[int, float]) -> bool:
    """Whether ``kept`` says what is measured now."""
    if _longest(target) < _CHECKED:
        return True
    seconds[_CHECKED] = _time(target, _CHECKED, _REPEATS)
    ratio = max(seconds[_CHECKED] / seconds[1], 1.0)
    return 1.0 / _AGREES <= ratio / kept.ratio(_CHECKED) <= _AGREES


def _measure(target: ModelContext, seconds: dict[int, float], budget: float) -> None:
    """Add as many widths to ``seconds`` as fit into ``budget`` seconds."""
    left = budget
    for width in _ORDER:
        if width > _longest(target) or width in seconds or width not in TIERS:
            continue
        nearest = max(known for known in seconds if known < width)
        if left < _REPEATS * seconds[nearest] * width / nearest:  # it takes that long at most
            continue
        seconds[width] = _time(target, width, _REPEATS)
        left -= _REPEATS * seconds[width]


def _longest(target: ModelContext) -> int:
    """The widest batch that an empty cache takes."""
    return min(target.max_width, target.n_batch, target.n_ctx)


def _time(target: ModelContext, width: int, repeats: int) -> float:
    """The median time of decodes of ``width`` tokens into an empty cache, their logits read."""
    times = []
    tokens: Sequence[int] = [0] * width
    for _ in range(repeats):
        target.clear(0)
        run = Run(0, 0, tokens, width)
        begun = perf_counter()
        target.decode([run])
        target.logits(run.row + width - 1)
        times.append(perf_counter() - begun)
    return median(times)
