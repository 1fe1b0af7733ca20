"""A record as a picture: a bar for each workload and set-up, with its interval, beside plain."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any
from xml.sax.saxutils import escape

_LEFT, _RIGHT, _TOP, _BOTTOM = 190, 110, 64, 40
_WIDTH = 860
_BAR, _GAP = 14, 12
_COLORS = ("#2f6f9f", "#c46a1b", "#4b8b3b", "#8a4f9e", "#a83a3a", "#6b6b6b")


def chart(record: Mapping[str, Any]) -> str:
    """The SVG document."""
    comparisons = [one for one in record["comparisons"] if one["baseline"] == "plain"]
    setups = list(dict.fromkeys(one["setup"] for one in comparisons))
    workloads = list(dict.fromkeys(one["workload"] for one in comparisons))
    shown = [one["decode"] for one in comparisons if one["decode"]]
    most: float = max([1.25, *(min(found["high"], 20.0) for found in shown)])
    step = _step(most)
    most = step * math.ceil(most / step)
    block = len(setups) * _BAR + _GAP
    height = _TOP + max(len(workloads), 1) * block + _BOTTOM

    def x(value: float) -> float:
        return _LEFT + min(value, most) / most * (_WIDTH - _LEFT - _RIGHT)

    parts = _frame(record, setups, height, most, step, x(1.0), x)
    for i, workload in enumerate(workloads):
        top = _TOP + i * block
        middle = top + len(setups) * _BAR / 2 + 4
        parts.append(_text(_LEFT - 8, middle, workload, anchor="end"))
        for one in comparisons:
            if one["workload"] == workload:
                number = setups.index(one["setup"])
                parts += _bar(one, top + number * _BAR, _COLORS[number % len(_COLORS)], x)
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def _frame(
    record: Mapping[str, Any],
    setups: list[str],
    height: int,
    most: float,
    step: float,
    one: float,
    x: Callable[[float], float],
) -> list[str]:
    """Title, legend, grid, and the line of plain decoding."""
    title = f"{record['model']['files'][0]['file']}: decoding speed, plain decoding = 1"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        f'width="{_WIDTH}" height="{height}" font-family="sans-serif" font-size="12" role="img">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        _text(12, 22, title, size=15),
    ]
    at = 12.0
    for number, setup in enumerate(setups):
        color = _COLORS[number % len(_COLORS)]
        parts.append(f'<rect x="{at:.0f}" y="36" width="11" height="11" fill="{color}"/>')
        parts.append(_text(at + 16, 46, setup))
        at += 34 + 7.5 * len(setup)
    bottom = height - _BOTTOM + 4
    for i in range(round(most / step) + 1):
        value = i * step
        line = f'x1="{x(value):.1f}" x2="{x(value):.1f}" y1="{_TOP - 6}" y2="{bottom}"'
        parts.append(f'<line {line} stroke="#dddddd"/>')
        parts.append(_text(x(value), bottom + 16, f"{value:g}", anchor="middle"))
    line = f'x1="{one:.1f}" x2="{one:.1f}" y1="{_TOP - 6}" y2="{bottom}"'
    parts.append(f'<line {line} stroke="#333333" stroke-width="1.5"/>')
    return parts


def _bar(one: Mapping[str, Any], y: float, color: str, x: Callable[[float], float]) -> list[str]:
    """A bar from 0 with its interval, or the word that nothing is claimed."""
    found = one["decode"]
    middle = y + _BAR / 2 - 1
    if not found:
        return [_text(_LEFT + 4, middle + 4, "no claim", color="#888888")]
    low, mid, high = x(found["low"]), x(found["median"]), x(found["high"])
    width = mid - _LEFT
    return [
        f'<rect x="{_LEFT}" y="{y:.1f}" width="{width:.1f}" height="{_BAR - 3}" fill="{color}"/>',
        f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{middle:.1f}" y2="{middle:.1f}" '
        'stroke="#111111" stroke-width="1.5"/>',
        _text(max(high, mid) + 6, middle + 4, f"{found['median']:.2f}"),
    ]


def _text(
    x: float, y: float, text: str, *, anchor: str = "start", size: int = 12, color: str = "#222222"
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" '
        f'fill="{color}">{escape(text)}</text>'
    )


def _step(most: float) -> float:
    """Between two lines of the grid: about six of them."""
    for step in (0.25, 0.5, 1.0, 2.0, 5.0):
        if most / step <= 7:
            return step
    return 10.0
