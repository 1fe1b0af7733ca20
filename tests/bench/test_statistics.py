"""Intervals of medians: against first principles, and against coins."""

from __future__ import annotations

import itertools
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gguf_spec.bench.statistics import coverage, estimate, geometric_mean

values = st.lists(st.floats(0.1, 10.0), min_size=1, max_size=30)


@given(values)
def test_an_interval_holds_the_median_and_is_made_of_values(numbers: list[float]) -> None:
    found = estimate(numbers)
    assert found is not None
    assert found.low <= found.median <= found.high
    assert found.median == median(numbers)
    assert {found.low, found.high} <= set(numbers)
    assert estimate(numbers[::-1]) == found


@given(values, st.floats(0.5, 2.0))
def test_it_scales(numbers: list[float], factor: float) -> None:
    found, scaled = estimate(numbers), estimate([factor * number for number in numbers])
    assert found is not None
    assert scaled is not None
    assert scaled.low == pytest.approx(factor * found.low)
    assert scaled.confidence == found.confidence


@pytest.mark.parametrize("n", range(1, 11))
def test_coverage_is_that_of_all_coins(n: int) -> None:
    """Every value is above or below the true median: of all 2^n cases, the share in which the
    interval between two order statistics holds it."""
    for rank in range(1, n // 2 + 1):
        holds = sum(rank <= sum(coins) <= n - rank for coins in itertools.product((0, 1), repeat=n))
        assert coverage(n, rank) == pytest.approx(holds / 2**n)


def test_the_narrowest_interval_of_95_percent_is_taken() -> None:
    found = estimate(list(range(1, 10)))  # 9: the second smallest to the second largest, 96 %
    assert found is not None
    assert (found.low, found.high) == (2, 8)
    assert found.confidence >= 0.95 > coverage(9, 3)


def test_few_values_promise_less() -> None:
    five, six = estimate([1.0] * 5), estimate([1.0] * 6)
    assert five is not None
    assert six is not None
    assert five.confidence == pytest.approx(0.9375)
    assert six.confidence > 0.95
    assert estimate([]) is None
    alone = estimate([2.0])
    assert alone is not None
    assert alone.confidence == 0.0


@given(values)
def test_ratios_and_their_inverses_have_inverse_means(numbers: list[float]) -> None:
    inverse = geometric_mean([1 / number for number in numbers])
    assert geometric_mean(numbers) * inverse == pytest.approx(1.0)
    assert min(numbers) * 0.999 <= geometric_mean(numbers) <= max(numbers) * 1.001
