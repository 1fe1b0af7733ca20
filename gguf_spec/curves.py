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
    seconds = {1: 0.0}
    for _ in range(2):  # the first decodes find pages missing and graphs unbuilt
        seconds[1] = _time(target, 1, 1)
    seconds[1] = _time(target, 1, _REPEATS)
    kept = _load(path)
    if kept is not None and _agrees(target, kept, seconds):
        kept.base = seconds[1]
        target.clear(0)
        return kept
    _measure(target, seconds, budget)
    curve = CostCurve()
    curve.set_curve(0, seconds)
    target.clear(0)
    if path is not None:
        save_curve(path, curve)
    return curve


def save_curve(path: Path, curve: CostCurve) -> None:
    """Keep ``curve``. That it cannot be kept is no reason not to go on."""
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    try:
        replace_json(path, {"measured": now, "ratios": curve.record()})
    except InputError:
        return


def _load(path: Path | None) -> CostCurve | None:
    """A kept curve that has not expired."""
    if path is None:
        return None
    try:
        with path.open("rb") as file:
            record = json.loads(file.read(_LARGEST))
        age = datetime.now(timezone.utc) - datetime.fromisoformat(record["measured"])
        curve = CostCurve.from_record(record["ratios"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return curve if timedelta(0) <= age < EXPIRES and len(curve.known()) > 1 else None


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
        if left < _REPEATS * seconds[1]:
            break
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
