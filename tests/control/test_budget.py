"""What drafting may cost: at every prefix of a text at most 3 % of its time and 8 plain tokens.

Assumed is that a single time is off by no more than 10 %, each on its own, that the curve of the
warm-up is off by no more than the check of a kept curve admits, and that a draft takes the same
time today and tomorrow. Losses are counted by the true times.
"""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from gguf_spec.control import CostCurve
from tests.control.simulated import PLAIN, Copying, Neural, controller_of, simulate

WIDTHS = (1, 2, 4, 8, 16)
#: What a row more costs, between these widths: from nothing to as much as a step of its own.
slopes = st.lists(st.floats(0.0, 1.0), min_size=len(WIDTHS), max_size=len(WIDTHS))
#: The chance of a token, for one stretch of 64 tokens after the other.
chances = st.lists(st.sampled_from([0.0, 0.2, 0.5, 0.8, 0.95, 1.0]), min_size=1, max_size=8)
times = st.floats(0.0, 1.5)
errors = st.lists(st.floats(0.77, 1.3), min_size=len(WIDTHS) - 1, max_size=len(WIDTHS) - 1)


@settings(max_examples=40, deadline=None)
@given(
    slopes=slopes,
    copied=chances,
    guessed=chances,
    first=times,
    each=times,
    errors=st.none() | errors,
    noise=st.sampled_from([0.0, 0.05, 0.1]),
    seed=st.integers(0, 1000),
)
def test_no_more_is_lost_than_the_budget(
    slopes: list[float],
    copied: list[float],
    guessed: list[float],
    first: float,
    each: float,
    errors: list[float] | None,
    noise: float,
    seed: int,
) -> None:
    def cost(width: int) -> float:
        steps = 1.0
        for (begin, end), slope in zip(itertools.pairwise((*WIDTHS, 1 << 20)), slopes, strict=True):
            steps += slope * max(min(width, end) - begin, 0)
        return steps

    curve = CostCurve()
    curve.base = PLAIN
    if errors is not None:
        known = {
            w: max(PLAIN * cost(w) * e, PLAIN) for w, e in zip(WIDTHS[1:], errors, strict=True)
        }
        curve.set_curve(0, {1: PLAIN, **known})
    drafters = [
        Copying(lambda n: copied[n // 64 % len(copied)]),
        Neural(lambda n: guessed[n // 64 % len(guessed)], first, each),
    ]
    controller = controller_of(drafters, curve)
    trace = simulate(controller, drafters, cost, 400, noise=noise, seed=seed)
    assert trace.worst <= 8.0
