"""What is learned of drafted tokens from what became of them."""

from __future__ import annotations

import itertools

import pytest

from gguf_spec.control.acceptance import MatchChances, PositionChances


def test_longer_matches_are_trusted_more_before_anything_is_known() -> None:
    chances = MatchChances()
    known = [chances.of(match) for match in range(100)]
    assert known == sorted(known)
    assert known[0] < 0.3
    assert known[64] == known[99] > 0.95
    assert [MatchChances(hot=True).of(m) < chances.of(m) for m in (0, 5, 64)] == [True] * 3


def test_a_class_learns_from_its_own() -> None:
    chances = MatchChances()
    for _ in range(40):
        chances.observe(3, stood=False)
        chances.observe(40, stood=True)
    assert chances.of(3) < 0.1
    assert chances.of(40) > 0.95


def test_a_text_that_is_copied_raises_all_classes() -> None:
    chances = MatchChances()
    before = [chances.of(match) for match in (2, 8, 20)]
    for match in (3, 4, 5):
        chances.observe(match, stood=True)
    assert all(chances.of(m) > b for m, b in zip((2, 8, 20), before, strict=True))
    for match in (3, 4, 5) * 3:
        chances.observe(match, stood=False)
    assert all(chances.of(m) < b for m, b in zip((2, 8, 20), before, strict=True))


def test_the_expectation_of_a_copy_is_the_product_of_growing_matches() -> None:
    chances = MatchChances()
    for match in (2, 7, 15, 60, 200):
        survival, total, sums = 1.0, 1.0, []
        for k in range(30):
            survival *= chances.of(match + k)
            total += survival
            sums.append(total)
        lengths = [1, 3, 10, 30]
        assert chances.expected(match, lengths) == pytest.approx([sums[n - 1] for n in lengths])


def test_positions_are_judged_given_that_those_before_stood() -> None:
    chances = PositionChances(4)
    for n_accepted in itertools.islice(itertools.cycle([2, 1, 2, 4]), 200):
        chances.observe(4, n_accepted)
    assert chances.means == pytest.approx([1.0, 0.75, 1 / 3, 1.0], abs=0.1)


def test_an_unknown_position_is_like_the_one_before_it() -> None:
    chances = PositionChances(3)
    for _ in range(100):
        chances.observe(1, 1)
    means = chances.means
    assert means[0] > 0.95
    assert means[1] == pytest.approx(means[0])
    assert means[2] == pytest.approx(means[0])
    assert chances.expected([1, 3])[1] > 3.8


def test_what_is_in_doubt_is_soon_unlearned() -> None:
    sure, doubtful = PositionChances(1), PositionChances(1)
    for chances in (sure, doubtful):
        for _ in range(100):
            chances.observe(1, 0)
    doubtful.doubt(3.0)
    for chances in (sure, doubtful):
        for _ in range(5):
            chances.observe(1, 1)
    assert doubtful.means[0] > 0.4 > sure.means[0]


def test_a_draft_that_stood_whole_says_nothing_of_what_was_not_drafted() -> None:
    chances = PositionChances(3)
    before = chances.means[2]
    chances.observe(2, 2)
    chances.observe(9, 9)
    assert chances.means[2] > before, "drafts beyond the ceiling are no error"
