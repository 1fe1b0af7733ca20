"""Medians of paired ratios, with intervals that assume nothing about how times are distributed.

The interval of a median between the k-th smallest and the k-th largest of n values holds with a
probability that only depends on n and k: the median lies outside if fewer than k values fall on one
side of it, and each falls there like a coin. Noise of a shared machine is skewed and has outliers,
which is why no standard deviation is used; and nothing is drawn at random, so a record always
gives the same interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class Estimate:
    """A median with its interval, which holds the true one with probability ``confidence``; with
    few values that is less than 0.95, because no interval of so few can promise more."""

    median: float
    low: float
    high: float
    confidence: float
    n: int

    def record(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


def estimate(values: Sequence[float], level: float = LEVEL) -> Estimate | None:
    """The median of ``values`` and the narrowest symmetric interval that reaches ``level``, or the
    whole range if none does. None without values."""
    n = len(values)
    if not n:
        return None
    ordered = sorted(values)
    rank = 1
    while 2 * (rank + 1) <= n and coverage(n, rank + 1) >= level:
        rank += 1
    return Estimate(median(ordered), ordered[rank - 1], ordered[n - rank], coverage(n, rank), n)


def coverage(n: int, rank: int) -> float:
    """The chance that the true median lies between the ``rank``-th smallest and largest of ``n``
    independent values; 0 for a single one."""
    below = sum(math.comb(n, i) for i in range(rank))
    return max(1.0 - 2.0 * below / 2.0**n, 0.0)


def geometric_mean(values: Sequence[float]) -> float:
    """Of positive values: what is right for ratios, where 2 and 1/2 make 1."""
    total = math.fsum(math.log(value) for value in values)
    return math.exp(total / len(values))
