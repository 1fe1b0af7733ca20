"""Ratios are claimed over equal tokens only."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gguf_spec.bench.compare import compared_tokens, comparison, most_lost, overall, pair
from gguf_spec.bench.runner import BenchRun, Turn

tokens = st.lists(st.integers(0, 3), min_size=1, max_size=12)


def _turn(ids: list[int], seconds: float = 0.1, step: int = 1) -> Turn:
    """Tokens that come ``step`` at a time, each step after ``seconds``."""
    times = [1.0 + seconds * ((i + step - 1) // step) for i in range(len(ids))]
    return Turn(tuple(ids), tuple(times))


def _run(number: int, *turns: Turn, setup: str = "auto", workload: str = "w") -> BenchRun:
    return BenchRun(number, workload, setup, list(turns))


@given(tokens, tokens, st.integers(1, 4))
def test_what_is_compared_is_equal_and_ends_with_a_step(
    a: list[int], b: list[int], step: int
) -> None:
    one, other = _turn(a), _turn(b, step=step)
    n = compared_tokens(one, other)
    assert a[:n] == b[:n]
    if a == b[: len(a)]:
        assert n == len(a)
    elif 0 < n < len(b):
        assert other.times[n] > other.times[n - 1]


def test_equal_texts_are_compared_whole() -> None:
    ids = list(range(9))
    found = pair(_run(1, _turn(ids)), _run(1, _turn(ids, step=2)))
    assert found["decode_ratio"] == pytest.approx(2.0)
    assert found["total_ratio"] == pytest.approx((1.0 + 0.8) / (1.0 + 0.4))
    assert found["baseline"]["tokens_per_second"] == pytest.approx(10.0)
    assert found["first_divergence"] is None


def test_a_base_that_ends_early_is_compared_whole() -> None:
    """A server that was asked for four tokens only, because its text then goes another way: our
    third step yields the fourth of them and one more."""
    base = Turn((0, 1, 2, 3), (1.0, 1.6, 1.6, 1.6))  # a server tells when an answer ends
    other = Turn((0, 1, 2, 3, 4, 5), (1.0, 1.1, 1.2, 1.3, 1.3, 1.4))
    assert compared_tokens(base, other) == 4
    assert pair(_run(1, base), _run(1, other))["decode_ratio"] == pytest.approx(2.0)
    # The other way round it would count against the base.
    assert compared_tokens(other, base) == 1


def test_turns_add_up() -> None:
    ids = list(range(5))
    one = _run(1, _turn(ids), _turn(ids))
    other = _run(1, _turn(ids, 0.05), _turn(ids, 0.2))
    assert pair(one, other)["decode_ratio"] == pytest.approx(0.8 / 1.0)


def test_the_most_that_was_lost_counts_the_ends_of_steps() -> None:
    plain = Turn(tuple(range(7)), tuple(float(i) for i in range(7)))
    #                   two steps of 3 s for one token each, then four tokens at once
    drafted = Turn(plain.tokens, (5.0, 8.0, 11.0, 12.0, 12.0, 12.0, 12.0))
    assert most_lost(plain, drafted, 7) == pytest.approx(0.97 * 6.0 - 2.0)
    assert most_lost(plain, drafted, 2) == pytest.approx(0.97 * 3.0 - 1.0)
    assert most_lost(plain, plain, 7) == 0.0
    assert most_lost(plain, drafted, 1) == 0.0
    two = pair(_run(1, plain, plain), _run(1, plain, drafted))
    assert two["most_lost_tokens"] == pytest.approx(3.82)


def _compare(difference: dict[str, Any] | None, at: int) -> dict[str, Any]:
    ids = list(range(20))
    other = [*ids[:at], *[99] * (20 - at)]
    base = [_run(i, _turn(ids), setup="plain") for i in (1, 2, 3)]
    return comparison(base, [_run(i, _turn(other, 0.05)) for i in (1, 2, 3)], difference)


def test_a_near_tie_leaves_what_precedes_it() -> None:
    found = _compare({"verdict": "identical-up-to-near-ties"}, 14)
    assert found["refused"] is None
    assert not found["equal"]
    assert found["decode"]["median"] == pytest.approx(2.0)
    assert found["pairs"][0]["compared_tokens"] == 14


@pytest.mark.parametrize(
    ("verdict", "at"),
    [("broken", 14), ("another text of the same distribution", 19)],
)
def test_another_text_is_refused(verdict: str, at: int) -> None:
    found = _compare({"verdict": verdict}, at)
    assert found["refused"] == f"the text differs from token {at + 1}: {verdict}"
    assert found["decode"] is None
    assert found["total"] is None


def test_too_little_in_common_is_refused() -> None:
    assert "half" in _compare({"verdict": "identical-up-to-near-ties"}, 9)["refused"]
    assert "half" in _compare(None, 9)["refused"]


def test_a_drafter_that_failed_is_no_measurement() -> None:
    ids = list(range(5))
    other = _run(1, _turn(ids))
    other.events.append("draft-simple failed and drafts no more: x")
    found = comparison([_run(1, _turn(ids), setup="plain")], [other])
    assert found["refused"] == "draft-simple failed and drafts no more: x"


def test_rounds_without_a_partner_do_not_count() -> None:
    ids = list(range(5))
    base = [_run(1, _turn(ids), setup="plain")]
    other = [_run(1, _turn(ids)), _run(2, _turn(ids, 9.0))]
    assert [one["round"] for one in comparison(base, other)["pairs"]] == [1]


def test_overall_leaves_out_what_is_refused() -> None:
    ids = list(range(9))
    comparisons = []
    for name, seconds in (("a", 0.05), ("b", 0.2), ("c", 0.001)):
        base = [_run(i, _turn(ids), setup="plain", workload=name) for i in (1, 2)]
        other = [_run(i, _turn(ids, seconds), workload=name) for i in (1, 2)]
        if name == "c":
            other[0].events.append("failed")
        comparisons.append(comparison(base, other))
    found = overall(comparisons)
    assert found["refused"] == ["c"]
    assert found["decode"]["median"] == pytest.approx(1.0)  # 2 and 1/2
    assert found["decode_workloads"] == 2
