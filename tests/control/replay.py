"""Recorded texts gone through again: drafters and a controller as in earnest, and no model.

What a target said once it would say again, so which drafts stand is known. What a decode takes, a
cost curve says. Nothing is measured, so everything is the same in every run.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from gguf_spec.control import AdaptiveController, CostCurve, DrafterFacts, Hints, Offer, Round
from gguf_spec.control.base import Controller
from gguf_spec.drafters.base import Drafter
from gguf_spec.history import History
from gguf_spec.sampling import Sampler, SamplingParams

PLAIN = 0.02  # seconds of a plain step
_SAMPLER = Sampler(SamplingParams())
_FOLDER = Path(__file__).parent

#: Measured on two x86 cores, and what a GPU that waits for memory and a mixture of experts have.
CURVES: dict[str, dict[int, float]] = {
    "smollm2": {1: 1.0, 2: 1.83, 4: 2.70, 8: 4.51, 16: 8.15},
    "gemma3": {1: 1.0, 2: 1.74, 4: 2.28, 8: 3.34, 16: 5.36},
    "gpu": {1: 1.0, 4: 1.1, 16: 1.5, 64: 3.1},
    "experts": {1: 1.0, 4: 1.6, 8: 2.4, 16: 4.0},
}


class Stream(NamedTuple):
    """A prompt, and what a model said to it."""

    prompt: list[int]
    tokens: list[int]


def streams(model: str, file: str = "streams.json") -> dict[str, Stream]:
    """The recorded texts of ``model`` by name. Those in ``holdout.json`` are never tuned on."""
    recorded = json.loads((_FOLDER / file).read_text(encoding="utf-8"))[model]
    return {name: Stream(one["prompt"], one["tokens"]) for name, one in recorded.items()}


def cost_of(name: str) -> Callable[[int], float]:
    """c(width) by straight lines between the known widths, and on behind the last."""
    points = sorted(CURVES[name].items())

    def cost(width: int) -> float:
        for (w0, c0), (w1, c1) in pairwise(points):
            if width <= w1 or (w1, c1) == points[-1]:
                return c0 + (c1 - c0) * (width - w0) / (w1 - w0)
        raise AssertionError

    return cost


def known_curve(
    cost: Callable[[int], float], widths: Sequence[int] = (1, 2, 4, 8, 16)
) -> CostCurve:
    """What a warm-up would have found."""
    curve = CostCurve()
    curve.set_curve(0, {width: PLAIN * cost(width) for width in widths})
    return curve


def adaptive(
    drafters: Sequence[Drafter], ceilings: Sequence[int], curve: CostCurve, hot: bool = False
) -> AdaptiveController:
    """A controller of n-gram drafters."""
    facts = [
        DrafterFacts(d.spec_type, n, ngram=True, size=getattr(d, "size_n", 1))
        for d, n in zip(drafters, ceilings, strict=True)
    ]
    controller = AdaptiveController(facts, curve)
    controller.begin(Hints(temperature=1.0 if hot else 0.0))
    return controller


@dataclass(slots=True)
class Outcome:
    """``speed`` is relative to plain decoding, ``worst`` the most that was lost at any prefix
    beyond 3 % of the time, in plain tokens. ``lengths`` are those of all drafts, 0 for none."""

    speed: float
    worst: float
    lengths: list[int]
    n_accepted: int = 0


def replay(
    stream: Stream,
    drafters: Sequence[Drafter],
    controller: Controller,
    cost: Callable[[int], float],
    *,
    noise: float = 0.0,
    seed: int = 0,
) -> Outcome:
    """Say ``stream`` again with ``drafters``."""
    rng = random.Random(seed)
    history = History(stream.prompt)
    tokens = stream.tokens
    for drafter in drafters:
        drafter.begin(history)
    history.extend(tokens[:1])
    done, seconds, worst, lengths, stood = 1, 0.0, 0.0, [], 0
    while done < len(tokens):
        limit = len(tokens) - done - 1
        drafter_used, draft = _propose(drafters, controller, limit)
        accepted = 0
        while accepted < len(draft) and draft[accepted] == tokens[done + accepted]:
            accepted += 1
        new = tokens[done : done + accepted + 1]
        depth = len(history) - 1
        history.extend(new)
        for drafter in drafters:
            drafter.accept(accepted)
        took = PLAIN * cost(len(draft) + 1) * (1.0 + noise * rng.uniform(-1.0, 1.0))
        controller.record(Round(drafter_used, len(draft), accepted, 0.0, took, new, depth))
        done += len(new)
        seconds += took
        stood += accepted
        lengths.append(len(draft))
        worst = max(worst, (0.97 * seconds) / PLAIN - (done - 1))
    return Outcome((len(tokens) - 1) * PLAIN / seconds, worst, lengths, stood)


def _propose(
    drafters: Sequence[Drafter], controller: Controller, limit: int
) -> tuple[int | None, Sequence[int]]:
    if limit <= 0:
        return None, ()
    for choice in controller.choose(limit):
        made = drafters[choice.drafter].draft(min(choice.n_max, limit), _SAMPLER)
        offer = Offer(choice.drafter, made.tokens, made.match)
        if made.tokens and (n := controller.judge(choice, offer)):
            return choice.drafter, made.tokens[:n]
    return None, ()


def best_of(outcomes: Mapping[str, Outcome]) -> tuple[str, float]:
    """The fastest of several."""
    name = max(outcomes, key=lambda key: outcomes[key].speed)
    return name, outcomes[name].speed
