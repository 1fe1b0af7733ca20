"""The best of several settings, chosen on one half of the rounds and compared on the other.

Whoever picks the fastest of many on the very runs that are then compared has picked luck, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from gguf_spec.bench.statistics import estimate

Ratios = Mapping[str, Mapping[int, float]]
"""Speeds over that of plain decoding by setting and round."""


def best_of(speeds: Ratios, rounds: Sequence[int]) -> str | None:
    """The setting with the largest median over ``rounds``, of those that have all of them."""
    known = {
        name: median(by_round[r] for r in rounds)
        for name, by_round in speeds.items()
        if rounds and all(r in by_round for r in rounds)
    }
    return max(known, key=lambda name: known[name]) if known else None


def crossed(speeds: Ratios, against: Ratios) -> dict[str, Any]:
    """Something beside the best setting of ``speeds``.

    ``against[setting]`` has, by round, how many times as fast as that setting it was. The odd
    rounds choose a setting for the even ones and the other way round; both halves are given, and
    the median over all rounds, each beside the setting that the other half chose.
    """
    rounds = sorted({r for by_round in speeds.values() for r in by_round})
    odd, even = [r for r in rounds if r % 2], [r for r in rounds if not r % 2]
    halves, every = [], []
    for chosen_on, compared_on, numbers in (
        ("odd rounds", "even rounds", (odd, even)),
        ("even rounds", "odd rounds", (even, odd)),
    ):
        best = best_of(speeds, numbers[0])
        ratios = against.get(best or "", {})
        values = [ratios[r] for r in numbers[1] if r in ratios]
        every += values
        found = estimate(values)
        halves.append(
            {
                "chosen_on": chosen_on,
                "best": best,
                "compared_on": compared_on,
                "ratio": found and found.record(),
                "pairs": values,
            }
        )
    found = estimate(every)
    return {"halves": halves, "ratio": found and found.record()}
