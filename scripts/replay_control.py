"""Recorded answers said again: automatic drafting beside fixed settings, without a model.

    scripts/replay_control.py [--streams FILE] [--costs NAME …]

For each text the speed over plain decoding of ``auto``, in a first request and in a second of the
same kind, of the best of llama.cpp's n-gram types at their defaults, and of the best of a sweep.
FILE has {model: {name: {"prompt": [token …], "tokens": [token …]}}}; texts whose name begins with
``hot`` were drawn at temperature 1. The texts in tests/control/streams.json have been used to tune
the controller; those in tests/control/holdout.json have not, and are not to be. NAMEs are cost
curves of tests/control/replay.py; by default the model's own.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gguf_spec.control import FixedPolicy, Hints
from gguf_spec.drafters.ngram import NgramSimple
from gguf_spec.drafters.ngram_base import NgramDrafter
from gguf_spec.drafters.ngram_cache import NgramCache
from gguf_spec.drafters.ngram_longest import LongestMatch
from gguf_spec.drafters.ngram_map import NgramMapK, NgramMapK4V
from gguf_spec.drafters.ngram_mod import NgramMod
from gguf_spec.drafters.ngram_registry import AUTO_SIZES
from tests.control.replay import (
    CURVES,
    Outcome,
    Stream,
    adaptive,
    best_of,
    cost_of,
    known_curve,
    replay,
    streams,
)

DEFAULTS: dict[str, tuple[Callable[[], NgramDrafter], int]] = {
    "ngram-simple": (NgramSimple, 48),
    "ngram-map-k": (NgramMapK, 48),
    "ngram-map-k4v": (NgramMapK4V, 48),
    "ngram-mod": (NgramMod, 64),
    "ngram-cache": (NgramCache, 8),
}
SWEEP = [(n, m) for n in (1, 2, 3, 4, 5, 8, 12) for m in (2, 4, 8, 16, 24, 48)]


def main() -> None:
    """Print one line for each text."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--streams", type=Path, help="recorded texts (default: the tests')")
    parser.add_argument("--costs", nargs="*", choices=sorted(CURVES), help="cost curves")
    options = parser.parse_args()
    shares: list[tuple[float, float, float]] = []
    for model, texts in recorded(options.streams).items():
        for costs in options.costs or [model if model in CURVES else "smollm2"]:
            for name, stream in texts.items():
                hot = name.startswith("hot")
                shares.append(line(f"{model:8} {costs:8} {name:11}", stream, costs, hot=hot))
    first, second, default = (fmean(column) for column in zip(*shares, strict=True))
    print(
        f"first requests: {first:.3f} of the best fixed settings (the least: "
        f"{min(share[0] for share in shares):.3f}), {default:.3f} of llama.cpp's best type at its "
        f"defaults (the least: {min(share[2] for share in shares):.3f}); second requests: "
        f"{second:.3f} of the best fixed settings"
    )


def recorded(path: Path | None) -> dict[str, dict[str, Stream]]:
    """The texts by model and name."""
    if path is None:
        return {model: streams(model) for model in ("smollm2", "gemma3")}
    read = json.loads(path.read_text(encoding="utf-8"))
    return {
        model: {name: Stream(one["prompt"], one["tokens"]) for name, one in texts.items()}
        for model, texts in read.items()
    }


def line(title: str, stream: Stream, costs: str, *, hot: bool) -> tuple[float, float, float]:
    """Print how ``stream`` goes, which was drawn at temperature 1 if ``hot``. The shares of the
    best fixed setting in a first request and in a second, and of the best default type."""
    cost = cost_of(costs)

    def fixed(drafter: NgramDrafter, longest: int) -> Outcome:
        return replay(stream, [drafter], FixedPolicy([longest]), cost)

    defaults = {kind: fixed(make(), longest) for kind, (make, longest) in DEFAULTS.items()}
    swept = {f"{n}/{m}": fixed(NgramSimple(n, m), m) for n, m in SWEEP}
    controller = adaptive([LongestMatch(*AUTO_SIZES)], [AUTO_SIZES[1]], known_curve(cost), hot)
    speeds = []
    for _ in range(2):
        controller.begin(Hints(temperature=1.0 if hot else 0.0))
        outcome = replay(stream, [LongestMatch(*AUTO_SIZES)], controller, cost, noise=0.05)
        speeds.append(outcome.speed)
    kind, default = best_of(defaults)
    setting, best = best_of(swept)
    print(
        f"{title} auto {speeds[0]:5.2f} {speeds[1]:5.2f}   {kind:13} {default:5.2f}   "
        f"ngram-simple {setting:5} {best:5.2f}"
    )
    most = max(best, default, 1.0)
    return speeds[0] / most, speeds[1] / most, speeds[0] / default


if __name__ == "__main__":
    main()
