"""GBNF expressions for JSON numbers between bounds."""

from __future__ import annotations

import math

# Digits before and behind the point. Doubles tell 15 apart.
_MOST_DIGITS = 16
_FRACTION = '"." [0-9]{1,15}'
_ABOVE_ZERO = '"." "0"{0,14} [1-9] [0-9]{0,14}'

Number = int | float | None


def integers(low: Number, high: Number, *, above: Number = None, below: Number = None) -> str:
    """Whole numbers from ``low`` to ``high``, larger than ``above`` and smaller than ``below``.

    Raises:
        ValueError: there is none, or it would have too many digits.
    """
    bounds = [math.ceil(low)] if low is not None else []
    bounds += [math.floor(above) + 1] if above is not None else []
    least = max(bounds, default=None)
    bounds = [math.floor(high)] if high is not None else []
    bounds += [math.ceil(below) - 1] if below is not None else []
    most = min(bounds, default=None)
    if least is not None and most is not None and least > most:
        raise ValueError("no whole number is within the bounds")
    found = []
    if least is None or least < 0:
        top = None if least is None else -least
        bottom = 1 if most is None or most >= 0 else -most
        found.append(f'"-" ( {_digits(bottom, top)} )')
    if most is None or most >= 0:
        found.append(_digits(max(least or 0, 0), most))
    return " | ".join(found)


def numbers(low: Number, high: Number, *, above: Number = None, below: Number = None) -> str:
    """Numbers between bounds, as ``integers``. Bounds have to be whole numbers.

    Raises:
        ValueError: there is none, or a bound is not a whole number.
    """
    if low is None and high is None and above is None and below is None:
        digits = f'( "0" | [1-9] [0-9]{{0,{_MOST_DIGITS - 1}}} )'
        return f'"-"? {digits} ( {_FRACTION} )? ( [eE] [-+]? [0-9]{{1,2}} )?'
    least, without_least = _bound(low, above, max)
    most, without_most = _bound(high, below, min)
    outside = without_least or without_most
    if least is not None and most is not None and (least > most or (least == most and outside)):
        raise ValueError("no number is within the bounds")
    found = []
    if least is None or least < 0:
        top = None if least is None else -least
        bottom = 0 if most is None or most > 0 else -most
        # 0 itself is written without a sign.
        without = without_most if most is not None and most <= 0 else True
        found.append(f'"-" ( {_between(bottom, top, without or bottom == 0, without_least)} )')
    if most is None or most > 0 or (most == 0 and not without_most):
        bottom = max(least or 0, 0)
        without = without_least if least is not None and least >= 0 else False
        found.append(_between(bottom, most, without, without_most))
    return " | ".join(found)


def _bound(with_it: Number, without: Number, pick: object) -> tuple[int | None, bool]:
    """The tighter of two bounds, and whether the bound itself is outside."""
    for value in (with_it, without):
        if value is not None and value != int(value):
            raise ValueError(
                f"{value:g}: a bound of a number has to be whole (minimum, maximum, …)"
            )
    if without is None or (with_it is not None and with_it == pick(with_it, without) != without):  # type: ignore[operator]
        return (None if with_it is None else int(with_it)), False
    return int(without), True


def _between(low: int, high: int | None, without_low: bool, without_high: bool) -> str:
    """Decimal numbers from ``low`` to ``high``, from 0 up."""
    if low == high:
        return f'{_digits(low, high)} ( "." "0"{{1,15}} )?'
    found = []
    if without_low:
        found.append(f"{_digits(low, low)} {_ABOVE_ZERO}")
        low += 1
    if high is None or low < high:
        found.append(f"( {_digits(low, None if high is None else high - 1)} ) ( {_FRACTION} )?")
    if high is not None and not without_high:
        found.append(f'{_digits(high, high)} ( "." "0"{{1,15}} )?')
    return " | ".join(found)


def _digits(low: int, high: int | None) -> str:
    """Whole numbers from ``low`` to ``high``, from 0 up, in decimal digits."""
    if len(str(low)) > _MOST_DIGITS or (high is not None and len(str(high)) > _MOST_DIGITS):
        raise ValueError(f"a bound has more than {_MOST_DIGITS} digits")
    found = []
    n_least = len(str(low))
    n_most = n_least if high is None else len(str(high))
    for n in range(n_least, n_most + 1):
        first = str(low) if n == n_least else "1" + "0" * (n - 1)
        last = str(high) if high is not None and n == n_most else "9" * n
        found.append(_same_length(first, last))
    if high is None and n_most < _MOST_DIGITS:
        found.append(f"[1-9] [0-9]{{{n_most},{_MOST_DIGITS - 1}}}")
    return " | ".join(found)


def _same_length(first: str, last: str) -> str:
    """Digits from ``first`` to ``last``, which are as long as each other."""
    if first == last:
        return f'"{first}"'
    n_rest = len(first) - 1
    if first[1:] == "0" * n_rest and last[1:] == "9" * n_rest:
        head = f'"{first[0]}"' if first[0] == last[0] else f"[{first[0]}-{last[0]}]"
        return f"{head} [0-9]{{{n_rest}}}" if n_rest else head
    if first[0] == last[0]:
        return f'"{first[0]}" ( {_same_length(first[1:], last[1:])} )'
    found = [f'"{first[0]}" ( {_same_length(first[1:], "9" * n_rest)} )']
    low, high = int(first[0]) + 1, int(last[0]) - 1
    if low <= high:
        found.append(f"[{low}-{high}] [0-9]{{{n_rest}}}")
    found.append(f'"{last[0]}" ( {_same_length("0" * n_rest, last[1:])} )')
    return " | ".join(found)
