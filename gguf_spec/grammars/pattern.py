"""Regular expressions of JSON schemas (``pattern``) as GBNF, between the quotes of a JSON string.

The expression is matched against the value of the string, the grammar describes how it is written:
quotes, backslashes and control characters are escaped there. Python's own parser of regular
expressions reads them; classes such as \\w are ASCII, as in ECMA 262.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from typing import Any, TypeAlias

# A character of a JSON string as it is written; surrogates are not written as escapes.
CHARACTER = (
    r'[^"\\\x7F\x00-\x1F] | "\\" ( ["\\/bfnrt] | '
    r'"u" ( [0-9a-cA-Ce-fE-F] [0-9a-fA-F]{3} | [dD] [0-7] [0-9a-fA-F]{2} ) )'
)
MAX_LENGTH = 4096
MAX_REPETITIONS = 2000

_LAST = 0x10FFFF
Ranges: TypeAlias = list[tuple[int, int]]

_CLASSES: dict[str, Ranges] = {
    "DIGIT": [(0x30, 0x39)],
    "WORD": [(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)],
    "SPACE": [(0x09, 0x0D), (0x20, 0x20), (0xA0, 0xA0), (0x2028, 0x2029), (0xFEFF, 0xFEFF)],
}
_ESCAPED = {0x22: '"', 0x5C: "\\", 0x08: "b", 0x0C: "f", 0x0A: "n", 0x0D: "r", 0x09: "t"}


def pattern_rule(pattern: Any) -> str:
    """The expression for strings that match ``pattern``, anywhere unless it has anchors.

    Raises:
        ValueError: it is no regular expression, or one that a grammar cannot express.
    """
    if not isinstance(pattern, str):
        raise ValueError("a pattern is a string")
    if len(pattern) > MAX_LENGTH:
        raise ValueError(f"the pattern has {len(pattern)} characters, the most is {MAX_LENGTH}")
    parser: Any = importlib.import_module("re._parser")
    try:
        parsed = parser.parse(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"not a regular expression: {error}") from None
    if parsed.state.flags & ~re.UNICODE:
        raise ValueError("flags such as (?i) are not supported")
    try:
        return _anchored(list(parsed))
    except RecursionError:
        raise ValueError("the pattern is nested too deep") from None


def _anchored(items: Sequence[Any], starts: bool = True, ends: bool = True) -> str:
    """Items at the start or the end of a pattern: what is not anchored there may have anything
    before or behind it. Python's parser takes what alternatives share out of them, anchors too."""
    if starts and items and _is_anchor(items[0], "BEGINNING"):
        items, starts = items[1:], False
    if ends and items and _is_anchor(items[-1], "END"):
        items, ends = items[:-1], False
    if not items:
        return "char*" if starts or ends else '""'
    parts = []
    for i, item in enumerate(items):
        first, last = starts and i == 0, ends and i == len(items) - 1
        kind, value = str(item[0]), item[1]
        if (first or last) and kind == "BRANCH":
            branches = (_anchored(list(branch), first, last) for branch in value[1])
            parts.append(f"( {' | '.join(branches)} )")
        elif (first or last) and kind == "SUBPATTERN" and not (value[1] or value[2]):
            parts.append(f"( {_anchored(list(value[3]), first, last)} )")
        else:
            parts += [*["char*"] * first, _one(item), *["char*"] * last]
    return " ".join(parts)


def _is_anchor(item: Any, which: str) -> bool:
    return str(item[0]) == "AT" and str(item[1]) in (f"AT_{which}", f"AT_{which}_STRING")


def _sequence(items: Sequence[Any]) -> str:
    return " ".join(_one(item) for item in items) or '""'


def _one(item: Any) -> str:
    kind, value = str(item[0]), item[1]
    if kind == "LITERAL":
        return _written([(value, value)])
    if kind == "NOT_LITERAL":
        return _written(_others([(value, value)]))
    if kind == "ANY":
        return _written(_others([(0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029)]))
    if kind == "IN":
        return _written(_ranges(value))
    if kind == "BRANCH":
        return f"( {' | '.join(_sequence(list(branch)) for branch in value[1])} )"
    if kind == "SUBPATTERN":
        if value[1] or value[2]:
            raise ValueError("flags such as (?i:…) are not supported")
        return f"( {_sequence(list(value[3]))} )"
    if kind in ("MAX_REPEAT", "MIN_REPEAT"):
        low, high, inner = value
        most = "" if str(high) == "MAXREPEAT" else high
        if max(low, most or 0) > MAX_REPETITIONS:
            raise ValueError(f"more than {MAX_REPETITIONS:,} repetitions in a pattern")
        return f"( {_sequence(list(inner))} ){{{low},{most}}}"
    if kind == "AT":
        raise ValueError("^ and $ may stand at the ends of a pattern only, and \\b nowhere")
    raise ValueError(f"{kind.lower().replace('_', ' ')} is not supported in a pattern")


def _ranges(items: Sequence[Any]) -> Ranges:
    """The characters of a class."""
    found: Ranges = []
    negated = False
    for kind, value in items:
        name = str(kind)
        if name == "NEGATE":
            negated = True
        elif name == "LITERAL":
            found.append((value, value))
        elif name == "RANGE":
            found.append(value)
        else:  # CATEGORY
            _, *rest = str(value).removeprefix("CATEGORY_").split("NOT_")
            ranges = _CLASSES[(rest or [str(value).removeprefix("CATEGORY_")])[0]]
            found += _others(ranges) if rest else ranges
    return _others(found) if negated else found


def _others(ranges: Ranges) -> Ranges:
    """All other characters."""
    found, start = [], 0
    for low, high in sorted(ranges):
        if low > start:
            found.append((start, low - 1))
        start = max(start, high + 1)
    if start <= _LAST:
        found.append((start, _LAST))
    return found


def _written(ranges: Ranges) -> str:
    """One of the characters, as a JSON string has it."""
    plain = _cut(ranges, [(0x00, 0x1F), (0x22, 0x22), (0x5C, 0x5C), (0x7F, 0x7F), (0xD800, 0xDFFF)])
    found = []
    if len(plain) == 1 and plain[0][0] == plain[0][1]:
        found.append(f'"{_escape(plain[0][0])}"')
    elif plain:
        text = "".join(
            _escape(low) if low == high else f"{_escape(low)}-{_escape(high)}"
            for low, high in plain
        )
        found.append(f"[{text}]")
    for code, letter in _ESCAPED.items():
        if any(low <= code <= high for low, high in ranges):
            found.append(rf'"\\" "{_escape(ord(letter))}"')
    if not found:
        raise ValueError("the pattern has a class of characters that no JSON string holds")
    return found[0] if len(found) == 1 else f"( {' | '.join(found)} )"


def _cut(ranges: Ranges, without: Ranges) -> Ranges:
    """Characters that are in ``ranges`` and not in ``without``."""
    found: Ranges = []
    allowed = _others(without)
    for low, high in sorted(ranges):
        for first, last in allowed:
            start, end = max(low, first), min(high, last)
            if start <= end:
                found.append((start, end))
    return found


def _escape(code: int) -> str:
    char = chr(code)
    return char if char.isalnum() and char.isascii() else f"\\U{code:08X}"
