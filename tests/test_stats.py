"""Counters of a generation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gguf_spec.stats import DraftCounts, SpecStats, Timings


def test_worked_example() -> None:
    counts = DraftCounts()
    counts.observe_draft(3, 2)
    counts.observe_draft(5, 0)
    counts.observe_draft(1, 1)
    assert (counts.num_drafts, counts.num_draft_tokens, counts.num_accepted_tokens) == (3, 9, 3)
    assert counts.accepted_per_position == [2, 1, 0, 0, 0]
    assert counts.acceptance_rate == pytest.approx(3 / 9)
    assert counts.mean_acceptance_length == pytest.approx(2.0)


def test_rates_of_nothing_are_none() -> None:
    assert DraftCounts().acceptance_rate is None
    assert DraftCounts().mean_acceptance_length is None


def test_plain_rounds_are_steps_and_nothing_else() -> None:
    stats = SpecStats()
    stats.observe_step(None, 0, 0)
    stats.observe_step("ngram-simple", 0, 0)
    assert stats == SpecStats(steps=2)
    assert stats.by_type == {}


def test_no_two_share_their_lists() -> None:
    a, b = SpecStats(), SpecStats()
    a.observe_step("x", 2, 1)
    assert b == SpecStats()


SOURCES = st.sampled_from([None, "a", "b"])


@given(st.lists(st.tuples(SOURCES, st.integers(0, 9), st.integers(0, 9))))
def test_the_total_is_the_sum_of_the_types(steps: list[tuple[str | None, int, int]]) -> None:
    stats = SpecStats()
    rounds = [(s, n if s else 0, min(a, n) if s else 0) for s, n, a in steps]
    for source, n_drafted, n_accepted in rounds:
        stats.observe_step(source, n_drafted, n_accepted)
    assert stats.steps == len(rounds)
    drafted = [(s, n, a) for s, n, a in rounds if n]
    assert set(stats.by_type) == {s for s, _, _ in drafted}
    for name, counts in [*stats.by_type.items(), (None, stats.total)]:
        mine = [(n, a) for s, n, a in drafted if name in (None, s)]
        assert counts.num_drafts == len(mine)
        assert counts.num_draft_tokens == sum(n for n, _ in mine)
        assert counts.num_accepted_tokens == sum(a for _, a in mine)
        longest = max((n for n, _ in mine), default=0)
        assert counts.accepted_per_position == [sum(a > i for _, a in mine) for i in range(longest)]


def test_timings_start_at_zero() -> None:
    assert Timings() == Timings(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
