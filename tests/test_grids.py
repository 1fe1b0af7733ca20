"""The parts of a grid that are run cover it."""

from __future__ import annotations

from collections import Counter

import pytest

from tests import grids


def test_every_length_in_every_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grids, "_FULL", False)
    lengths, seeds = range(1, 16), range(50)
    met = Counter(
        (mode, length)
        for mode in range(4)
        for seed in seeds
        for length in grids.lengths_of(lengths, seed, mode)
    )
    assert set(met) == {(mode, length) for mode in range(4) for length in lengths}
    assert min(met.values()) >= 16
    for seed in seeds:
        assert {n for mode in range(3) for n in grids.lengths_of(lengths, seed, mode)} == {*lengths}
    monkeypatch.setattr(grids, "_FULL", True)
    assert grids.lengths_of(lengths, 3, 1) == lengths
