"""Curves are measured, kept, checked against the present, and forgotten in time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from gguf_spec import curves
from gguf_spec.context import Run
from gguf_spec.control import CostCurve
from gguf_spec.curves import EXPIRES, keep_learned, measured_curve, save_curve
from tests.toy import ToyContext


class Timed(ToyContext):
    """A decode takes 10 ms and ``slope`` of that for each further row, by a clock of its own."""

    clock = 0.0
    slope = 0.5

    def decode(self, runs: Sequence[Run]) -> None:
        super().decode(runs)
        n = sum(len(run.tokens) for run in runs)
        self.clock += 0.01 * (1.0 + self.slope * (n - 1))


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> Timed:
    timed = Timed(1, max_width=16)
    monkeypatch.setattr(curves, "perf_counter", lambda: timed.clock)
    return timed


def stored(path: Path, **changes: Any) -> None:
    record = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(record | changes), encoding="utf-8")


def test_measured_once_and_read_afterwards(target: Timed, tmp_path: Path) -> None:
    path = tmp_path / "costs" / "x.json"
    curve = measured_curve(target, path)
    assert curve.base == pytest.approx(0.01)
    known = curve.known()
    assert known == pytest.approx({width: 1 + 0.5 * (width - 1) for width in known})
    assert {2, 3, 4, 6, 8, 16} <= set(known)
    assert target.cache == [[]]
    took, decodes = target.clock, len(target.decodes)
    again = measured_curve(target, path)
    assert again.record() == curve.record()
    assert again.base == pytest.approx(0.01)
    assert target.clock - took < 0.2, "widths 1 and 4 are looked at"
    assert len(target.decodes) - decodes < 10
    assert target.cache == [[]]


def test_the_warm_up_keeps_to_its_second(target: Timed) -> None:
    measured_curve(target, None)
    assert target.clock < 1.0
    target.clock = 0.0
    assert 1 < len(measured_curve(target, None, budget=0.2).known()) < 4
    assert target.clock < 0.2


def test_a_machine_twice_as_slow_scales_the_curve(target: Timed, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    curve = measured_curve(target, path)
    before = path.read_bytes()
    real = target.decode

    def slow(runs: Sequence[Run]) -> None:
        clock = target.clock
        real(runs)
        target.clock += target.clock - clock

    target.decode = slow  # type: ignore[method-assign]
    scaled = measured_curve(target, path)
    assert scaled.base == pytest.approx(0.02)
    assert scaled.record() == curve.record()
    assert path.read_bytes() == before


def test_a_curve_of_a_bad_minute_is_measured_again(target: Timed, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    for slope in (5.0, 0.01):
        target.slope = slope
        save_curve(path, measured_curve(target, None))
        target.slope = 0.5
        curve = measured_curve(target, path)
        assert curve.ratio(4) == pytest.approx(2.5)
        assert curve.ratio(16) == pytest.approx(8.5)
        kept = CostCurve.from_record(json.loads(path.read_text(encoding="utf-8"))["ratios"])
        assert kept.ratio(16) == pytest.approx(8.5)


@pytest.mark.parametrize("age", [EXPIRES + timedelta(days=1), timedelta(days=-2)])
def test_old_curves_expire_and_those_of_the_future_are_not_believed(
    target: Timed, tmp_path: Path, age: timedelta
) -> None:
    path = tmp_path / "x.json"
    measured_curve(target, path)
    date = (datetime.now(timezone.utc) - age).isoformat()
    stored(path, measured=date, ratios={"0": {"1": 1.0, "4": 2.5, "16": 20.0}})
    assert measured_curve(target, path).ratio(16) == pytest.approx(8.5)
    assert json.loads(path.read_text(encoding="utf-8"))["measured"] != date


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '{"measured": 3, "ratios": {}}', '{"measured": "2030", "ratios": {}}',
     '{"measured": "2026-01-01T00:00:00", "ratios": {"0": {"1": 1, "4": 2}}}', "[" * 5000,
     '{"ratios": {"0": {"1": 1, "4": 2}}}'],
)  # fmt: skip
def test_a_damaged_file_is_replaced(target: Timed, tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text, encoding="utf-8")
    assert measured_curve(target, path).ratio(16) == pytest.approx(8.5)
    assert "16" in json.loads(path.read_text(encoding="utf-8"))["ratios"]["0"]


def test_what_cannot_be_kept_is_no_reason_to_stop(target: Timed, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert measured_curve(target, tmp_path / "file" / "x.json").ratio(4) == pytest.approx(2.5)


def test_deeper_contexts_are_learned_from_real_steps(target: Timed, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    curve = measured_curve(target, path)
    assert not keep_learned(path, curve), "nothing new"
    date = (datetime.now(timezone.utc) - timedelta(days=3)).isoformat()
    stored(path, measured=date)
    for _ in range(60):
        curve.observe(4, 20_000, 0.04)
    assert keep_learned(path, curve)
    again = measured_curve(target, path)
    assert again.ratio(4, 20_000) == pytest.approx(4.0, rel=0.05)
    assert again.ratio(4) == pytest.approx(2.5)
    kept = json.loads(path.read_text(encoding="utf-8"))["measured"]
    assert kept == date, "what is learned does not put off the expiry"


def test_what_contradicts_the_warm_up_is_not_kept(target: Timed, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    curve = measured_curve(target, path)
    before = path.read_bytes()
    for _ in range(60):
        curve.observe(8, 100, 0.2)
        curve.observe(4, 20_000, 0.04)
    assert not keep_learned(path, curve)
    assert path.read_bytes() == before
    path.unlink()
    assert not keep_learned(path, curve)
    assert not path.exists()
