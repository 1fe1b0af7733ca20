"""Which widths may be drafted for, from what was measured."""

from __future__ import annotations

import pytest

from gguf_spec.widths import WidthLimits, WidthResult, limits_of, measured_depths


def result(depth: int, width: int, *, identical: bool = True) -> WidthResult:
    return WidthResult(width, depth, 16, 16 if identical else 15, 0.0 if identical else 0.5, 0)


def test_a_limit_is_the_last_width_before_the_first_difference() -> None:
    results = [result(100, width, identical=width != 5) for width in range(1, 9)]
    assert limits_of(results) == WidthLimits((100,), (4,))


def test_a_width_that_was_not_measured_ends_it() -> None:
    results = [result(100, width) for width in (1, 2, 3, 5, 6, 16)]
    assert limits_of(results).limits == (3,)


def test_between_two_depths_the_smaller_limit_holds() -> None:
    limits = WidthLimits((100, 200, 300), (8, 3, 5))
    found = [limits.at(depth) for depth in (0, 99, 100, 101, 199, 200, 201, 299, 300)]
    assert found == [8, 8, 8, 3, 3, 3, 3, 3, 5]


def test_nothing_is_known_behind_the_last_depth() -> None:
    limits = WidthLimits((100,), (8,))
    assert limits.at(101) == 1
    assert WidthLimits().at(0) == 1
    assert (limits.deepest, limits.narrowest) == (100, 8)
    assert (WidthLimits().deepest, WidthLimits().narrowest) == (0, 1)


def test_order_of_measurements_does_not_matter() -> None:
    results = [
        result(depth, width, identical=width < depth // 10)
        for depth in (50, 20)
        for width in (3, 2, 1)
    ]
    assert limits_of(results) == limits_of(results[::-1]) == WidthLimits((20, 50), (1, 3))


@pytest.mark.parametrize(
    ("n_ctx", "expected"),
    [(4096, (16, 700)), (760, (16,)), (764, (16, 700)), (50, ()), (70, (6,))],
)
def test_depths_leave_room_for_the_rows(n_ctx: int, expected: tuple[int, ...]) -> None:
    assert measured_depths(n_ctx, 64, (16, 700)) == expected


def test_a_record_survives_json() -> None:
    one = WidthResult(7, 320, 21, 20, 1.25, 1)
    assert WidthResult.from_record(one.record()) == one
