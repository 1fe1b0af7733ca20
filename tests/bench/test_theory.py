"""The formulas against sums and simulated drafts; what explains a difference adds up."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gguf_spec.bench.theory import Tally, expected_speedup, expected_tokens, explain, total


@given(st.floats(0.0, 1.0), st.integers(0, 30))
def test_expected_tokens_is_the_sum_of_survivals(a: float, g: int) -> None:
    assert expected_tokens(a, g) == pytest.approx(sum(a**k for k in range(g + 1)), rel=1e-6)


@given(st.floats(0.0, 1.0), st.integers(1, 20), st.floats(0.0, 1.0))
def test_free_drafts_are_never_slower(a: float, g: int, c: float) -> None:
    assert expected_speedup(a, g, 0.0) >= 1.0
    assert expected_speedup(a, g, c) <= expected_speedup(a, g, 0.0)


@pytest.mark.parametrize("a", [0.2, 0.6, 0.9])
@pytest.mark.parametrize("g", [1, 4])
def test_acceptance_is_found_again(a: float, g: int) -> None:
    numbers, tally = random.Random(5), Tally()
    for _ in range(4000):
        accepted = 0
        while accepted < g and numbers.random() < a:
            accepted += 1
        tally.add(g, accepted, 0.001, 0.02)
    # 4000 drafts: the standard error is below 0.008
    assert tally.acceptance == pytest.approx(a, abs=0.03)


def _tallies() -> tuple[Tally, Tally]:
    plain, drafted = Tally(decode_seconds=10.0), Tally(decode_seconds=6.6)
    for _ in range(100):
        plain.add(0, 0, 0.0, 0.099)
    for i in range(20):
        drafted.add(4, 4 if i % 2 else 1, 0.02, 0.2)
    for _ in range(20):
        drafted.add(0, 0, 0.0, 0.1)
    return plain, drafted


def test_the_last_step_is_what_was_measured() -> None:
    plain, drafted = _tallies()
    found = explain(plain, drafted)
    assert found is not None
    per_token = drafted.decode_seconds / (drafted.steps + drafted.n_accepted)
    assert found.speedups[-1][1] == pytest.approx(0.1 / per_token)
    assert found.g == 4.0
    assert found.c == pytest.approx(0.02 / 4 / 0.1)
    assert found.verify_ms == pytest.approx(200.0)
    assert found.engine_ms == pytest.approx(1e3 * drafted.engine_seconds / 40)
    assert found.speedups[0][1] == pytest.approx(expected_speedup(found.a, 4.0, found.c))
    assert found.tokens[1] == pytest.approx(1 + drafted.n_accepted / 20)


def test_nothing_drafted_explains_nothing() -> None:
    plain, _ = _tallies()
    assert explain(plain, plain) is None
    assert explain(Tally(), _tallies()[1]) is None


def test_tallies_add_up() -> None:
    one, other = _tallies()
    both = total([one, other])
    assert both.steps == one.steps + other.steps
    assert both.decode_seconds == one.decode_seconds + other.decode_seconds
    assert both.n_accepted == other.n_accepted
