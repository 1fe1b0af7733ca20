"""Cost curves: between and beyond what was measured, learning, and records of them."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gguf_spec.control import CostCurve


def curve_of(**seconds: float) -> CostCurve:
    curve = CostCurve()
    curve.set_curve(0, {int(width[1:]): time for width, time in seconds.items()})
    return curve


def test_straight_lines_between_measurements_and_on_behind_the_last() -> None:
    curve = curve_of(w1=0.1, w3=0.2, w5=0.3)
    assert curve.base == 0.1
    ratios = [curve.ratio(width) for width in range(8)]
    assert ratios == pytest.approx([1.0, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0])
    assert curve.known() == pytest.approx({1: 1.0, 3: 2.0, 5: 3.0})


def test_a_wider_batch_is_never_called_cheaper() -> None:
    curve = curve_of(w1=0.1, w4=0.3, w8=0.2)
    assert [curve.ratio(width) for width in (4, 6, 8, 16)] == pytest.approx([3.0] * 4)


def test_nothing_measured_is_between_a_gpu_and_a_cpu() -> None:
    assert [CostCurve().ratio(width) for width in (1, 2, 5)] == [1.0, 1.25, 2.0]


def test_at_most_the_next_measured_width_or_a_plain_step_for_each_row() -> None:
    curve = curve_of(w1=0.1, w4=0.2, w8=0.3)
    assert [curve.most(w) for w in (1, 2, 4, 5, 8, 9, 12)] == pytest.approx([1, 2, 2, 3, 3, 4, 7])


def test_depth_classes_borrow_from_the_nearest_and_then_learn_for_themselves() -> None:
    curve = curve_of(w1=0.1, w4=0.2)
    assert curve.ratio(4, 20_000) == pytest.approx(2.0)
    for _ in range(100):
        curve.observe(4, 20_000, 0.4)
    assert curve.ratio(4, 20_000) == pytest.approx(4.0, rel=0.05)
    assert curve.ratio(4, 100_000) == pytest.approx(curve.ratio(4, 20_000)), "the nearest class"
    assert curve.ratio(4, 100) == pytest.approx(2.0)


def test_a_single_token_alone_tells_the_speed_of_the_machine() -> None:
    curve = curve_of(w1=0.1, w4=0.2)
    for _ in range(50):
        curve.observe(4, 0, 0.3)
    assert curve.base == 0.1
    for _ in range(50):
        curve.observe(1, 0, 0.2)
    assert curve.base == pytest.approx(0.2, rel=0.01)


def test_after_a_doubt_the_base_follows_at_once() -> None:
    slow, fast = curve_of(w1=0.1), curve_of(w1=0.1)
    for curve in (slow, fast):
        for _ in range(50):
            curve.observe(1, 0, 0.1)
    fast.doubt_base()
    for curve in (slow, fast):
        curve.observe(1, 0, 0.15)
    assert slow.base is not None
    assert fast.base is not None
    assert 0.1 < slow.base < fast.base < 0.15


def test_one_outlier_is_bounded() -> None:
    curve = curve_of(w1=0.1, w4=0.2)
    curve.observe(1, 0, 100.0)
    curve.observe(4, 0, 100.0)
    assert curve.base is not None
    assert curve.base < 0.15
    assert curve.ratio(4) < 2.2
    assert curve.observe(4, 0, 0.0) == 0.0, "no time is no measurement"


def test_the_first_measurement_of_a_width_counts_whole_up_to_what_is_possible() -> None:
    curve = curve_of(w1=0.1, w4=0.11)
    curve.observe(16, 0, 0.9)
    assert curve.ratio(16) == pytest.approx(9.0)
    curve.observe(32, 0, 90.0)
    assert curve.ratio(32) == pytest.approx(25.0), "9 and 16 rows more"


def test_the_truth_is_learned_from_noisy_steps() -> None:
    rng = random.Random(1)
    curve = CostCurve()
    for _ in range(400):
        width = rng.choice([1, 2, 4, 8])
        curve.observe(width, 0, 0.01 * (1 + 0.3 * (width - 1)) * rng.uniform(0.9, 1.1))
    assert curve.base == pytest.approx(0.01, rel=0.08)
    for width in (2, 4, 8):
        assert curve.ratio(width) == pytest.approx(1 + 0.3 * (width - 1), rel=0.1)


@given(
    st.lists(
        st.tuples(st.integers(1, 64), st.integers(0, 100_000), st.floats(1e-4, 10.0)), max_size=40
    )
)
def test_a_record_is_the_curve_without_its_base(steps: list[tuple[int, int, float]]) -> None:
    curve = CostCurve()
    for width, depth, seconds in steps:
        curve.observe(width, depth, seconds)
    record = json.loads(json.dumps(curve.record()))
    again = CostCurve.from_record(record)
    assert again.base is None
    assert again.record() == record
    for width in (1, 2, 7, 64, 100):
        for depth in (0, 1024, 1025, 50_000, 1 << 20):
            assert again.ratio(width, depth) == curve.ratio(width, depth)


@pytest.mark.parametrize(
    "record",
    [
        [], 3, {"0": 3}, {"0": {"2": "x"}}, {"x": {}}, {"0": {"2": None}}, {"9": {"2": 1.5}},
        {"0": {"2": 0.5}}, {"0": {"2": float("nan")}}, {"0": {"2": float("inf")}},
        {"0": {"0": 1.5}},
    ],
)  # fmt: skip
def test_what_is_no_record_is_refused(record: object) -> None:
    with pytest.raises(ValueError, match="no cost curve"):
        CostCurve.from_record(record)  # type: ignore[arg-type]


def test_what_a_bad_minute_has_raised_comes_back_while_nothing_is_drafted() -> None:
    curve = CostCurve()
    curve.set_curve(0, {1: 0.01, 4: 0.02, 8: 0.03})
    for _ in range(40):
        curve.observe(8, 100, 0.3)  # another program
    raised = curve.ratio(8)
    assert raised > 6.0
    for _ in range(63):
        curve.observe(1, 100, 0.01)
    assert curve.ratio(8) == raised
    for _ in range(640):
        curve.observe(1, 100, 0.01)
    assert curve.ratio(8) == pytest.approx(1.3 * 3.0, rel=0.01)
    assert curve.ratio(4) == 2.0


def test_what_is_a_little_dearer_than_in_the_warm_up_stays_so() -> None:
    curve = CostCurve()
    curve.set_curve(0, {1: 0.01, 4: 0.02})
    for _ in range(100):
        curve.observe(4, 100, 0.025)
    for _ in range(640):
        curve.observe(1, 100, 0.01)
    assert curve.ratio(4) == pytest.approx(2.5, rel=0.01)
