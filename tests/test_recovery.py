"""When a drafter's context is worth building anew."""

from __future__ import annotations

import random

import pytest

from gguf_spec.recovery import DROUGHT, GOOD, WINDOW, Recovery


def asked_at(accepted: list[int]) -> list[int]:
    """After which drafts a rebuild is asked for."""
    recovery = Recovery()
    return [i for i, n in enumerate(accepted, 1) if recovery.observe(n)]


@pytest.mark.parametrize("n_good", [GOOD, WINDOW, 500])
def test_a_drafter_that_was_good_and_is_never_right_any_more(n_good: int) -> None:
    drafts = [1 + i % 3 for i in range(n_good)] + [0] * DROUGHT
    assert asked_at(drafts) == [len(drafts)]
    assert asked_at(drafts[:-1]) == []


def test_one_token_that_stands_ends_a_drought() -> None:
    before = [1] * WINDOW + [0] * (DROUGHT - 1)
    assert asked_at([*before, 1, *[0] * (DROUGHT - 1)]) == []
    # And then the next one counts from there: the start of the window was good enough.
    assert asked_at([*[1] * WINDOW, 0, 1, *[0] * DROUGHT]) == [WINDOW + 2 + DROUGHT]


def test_once_and_no_more() -> None:
    spell = [1] * WINDOW + [0] * 5 * DROUGHT
    assert asked_at(spell * 3) == [WINDOW + DROUGHT]


def test_of_little_acceptance_there_is_little_to_mend() -> None:
    assert asked_at([0] * 1000) == []
    assert asked_at([1] * (GOOD - 1) + [0] * DROUGHT) == []
    # The good times are not those long ago: what counts stands right before the drought.
    assert asked_at([1] * 100 + [0, 0, 0, 1] * WINDOW + [0] * DROUGHT) == []


def test_a_hard_passage_seldom_looks_like_that() -> None:
    """Three quarters of the drafts stand, then for 200 drafts a quarter of them."""
    draw = random.Random(1).random
    asked = 0
    for _ in range(300):
        good = [int(draw() < 0.75) for _ in range(100)]
        hard = [int(draw() < 0.25) for _ in range(200)]
        asked += bool(asked_at(good + hard))
    assert asked <= 6
