"""A best setting that is not compared on the runs that chose it."""

from __future__ import annotations

import pytest

from scripts.halves import best_of, crossed


def test_the_best_is_that_of_the_median() -> None:
    speeds = {"a": {1: 1.0, 3: 1.0, 5: 9.0}, "b": {1: 1.2, 3: 1.3, 5: 1.1}}
    assert best_of(speeds, (1, 3, 5)) == "b"
    assert best_of(speeds, (5,)) == "a"


def test_a_setting_without_a_claim_is_not_the_best() -> None:
    assert best_of({"a": {1: 5.0}, "b": {1: 1.0, 3: 1.0}}, (1, 3)) == "b"
    assert best_of({"a": {}}, (1, 3)) is None
    assert best_of({"a": {1: 1.0}}, ()) is None


def test_each_half_is_compared_with_what_the_other_chose() -> None:
    speeds = {"a": {1: 2.0, 2: 1.0, 3: 2.0, 4: 1.0}, "b": {1: 1.0, 2: 3.0, 3: 1.0, 4: 3.0}}
    against = {"a": {1: 0.1, 2: 0.2, 3: 0.3, 4: 0.4}, "b": {1: 0.5, 2: 0.6, 3: 0.7, 4: 0.8}}
    found = crossed(speeds, against)
    odd, even = found["halves"]
    assert (odd["best"], odd["pairs"]) == ("a", [0.2, 0.4])
    assert (even["best"], even["pairs"]) == ("b", [0.5, 0.7])
    assert found["ratio"]["median"] == pytest.approx(0.45)
    assert found["ratio"]["n"] == 4


def test_nothing_to_compare_with() -> None:
    found = crossed({}, {})
    assert found["ratio"] is None
    assert [half["best"] for half in found["halves"]] == [None, None]
