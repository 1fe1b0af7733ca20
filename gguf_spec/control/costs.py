"""What a decode costs by its width: the curve c(w), relative to a single token.

On a GPU that waits for memory a batch of four costs about as much as one token; on a CPU without
cores to spare, three times that. The curve is measured in a warm-up, kept, and corrected by every
step. A machine that is busy for a minute slows all widths alike, so what is kept are ratios, and
the time of a single token is an estimate of its own that follows quickly.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping

from gguf_spec.control.base import MOST_SECONDS

#: Widths that a draft is cut to. llama.cpp uses a graph again if the next batch has as many rows,
#: so that few different ones are better than many.
TIERS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64)
#: Tokens in the cache up to which a curve is one curve; behind the last the fifth begins.
DEPTHS = (1024, 4096, 16384, 65536)

_PRIOR_SLOPE = 0.25  # of c(w), where nothing was measured: between a GPU's and a small CPU's
_BASE_RATE = 0.2  # how much of a surprise is the machine's
_RATIO_RATE = 0.1  # and how much of it is news of the curve
_LEAST_SECONDS = 1e-9  # what a clock cannot tell from nothing
_MOST_RATIO = 9999.0  # no batch costs more
_STRANGE = 1.3  # times the warm-up's ratio: a busy machine, or news
_DOUBT_AFTER = 64  # plain tokens after which strange ratios are doubted
_MOST = 2.0  # times longer or shorter, no surprise is taken for more: it may be another program's


class CostCurve:
    """Seconds of a decode by width and depth.

    ``base`` is the time of a single token now, None before the first measurement. Ratios are kept
    for each of the depths' classes; a class without any borrows from the nearest shallower one.

    Ratios that a bad minute has raised far above the warm-up's would stop drafts for good, because
    nothing measures them again: while nothing but single tokens is decoded they come back, little
    by little, to where trying them once more is a small risk.
    """

    def __init__(self) -> None:
        self.base: float | None = None
        self._n_single = 1
        self._ratios: dict[int, dict[int, float]] = {}
        self._warm: dict[int, dict[int, float]] = {}
        """What the warm-up has found."""
        self._n_plain = 0
        self._lines: dict[int, tuple[list[int], list[float]]] = {}
        self._bounds: dict[tuple[int, int], tuple[float, float]] = {}

    def bounds(self, width: int, depth: int = 0) -> tuple[float, float]:
        """``ratio`` and ``most``, which are looked up for many widths in every round."""
        key = bisect_left(DEPTHS, depth), width
        found = self._bounds.get(key)
        if found is None:
            found = self._bounds[key] = self.ratio(width, depth), self.most(width, depth)
        return found

    def ratio(self, width: int, depth: int = 0) -> float:
        """c(``width``): the time of a batch over that of a single token, at least 1."""
        if width <= 1:
            return 1.0
        widths, ratios = self._line(_depth_class(depth))
        i = bisect_left(widths, width)
        if i < len(widths) and widths[i] == width:
            return ratios[i]
        if i == len(widths):  # on from the last two
            before = (widths[-2], ratios[-2]) if len(widths) > 1 else (0, 1.0 - _PRIOR_SLOPE)
            slope = (ratios[-1] - before[1]) / (widths[-1] - before[0])
            if len(widths) == 1:
                slope = _PRIOR_SLOPE
            return max(ratios[-1] + max(slope, 0.0) * (width - widths[-1]), 1.0)
        share = (width - widths[i - 1]) / (widths[i] - widths[i - 1])
        return ratios[i - 1] + share * (ratios[i] - ratios[i - 1])

    def most(self, width: int, depth: int = 0) -> float:
        """What c(``width``) can hardly exceed: that of the next wider batch that was measured, or
        if there is none, a plain step for every row more than in the widest."""
        widths, ratios = self._line(_depth_class(depth))
        i = bisect_left(widths, width)
        return ratios[i] if i < len(widths) else ratios[-1] + width - widths[-1]

    def known(self, depth: int = 0) -> dict[int, float]:
        """The measured ratios that hold at ``depth``, by width."""
        widths, ratios = self._line(_depth_class(depth))
        return dict(zip(widths, ratios, strict=True))

    def doubt_base(self) -> None:
        """The time of a single token may have changed: follow the next ones faster."""
        self._n_single = 1

    def observe(self, width: int, depth: int, seconds: float) -> float:
        """A decode of ``width`` rows took ``seconds``: the logarithm of how much longer that was
        than expected, bounded.

        Single tokens alone change ``base``: what others take says as much of the curve.
        """
        if not _LEAST_SECONDS <= seconds < math.inf:
            return 0.0
        if self.base is None:
            self.base = seconds / self.ratio(width, depth)
            return 0.0
        times = seconds / (self.base * self.ratio(width, depth))
        times = min(max(times, 1.0 / _MOST), _MOST)
        if width == 1:
            self._n_single += 1
            self.base *= times ** max(_BASE_RATE, 1.0 / self._n_single)
            self._n_plain += 1
            if self._n_plain % _DOUBT_AFTER == 0:
                self._doubt_strange()
            return math.log(times)
        surprise = math.log(times)
        self._n_plain = 0
        which = _depth_class(depth)
        known = width in self._line(which)[0]
        if known:
            changed = self.ratio(width, depth) * math.exp(_RATIO_RATE * surprise)
        else:  # the expectation was a guess, and bounds nothing
            changed = min(seconds / self.base, self.most(width, depth))
        changed = min(max(changed, 1.0), _MOST_RATIO)
        self._ratios.setdefault(which, dict(self._nearest(which)))[width] = changed
        self._forget()
        return surprise if known else 0.0

    def set_curve(self, depth: int, seconds: Mapping[int, float]) -> None:
        """Take over a measurement of several widths, of which 1 is one."""
        base = self.base = min(max(_LEAST_SECONDS, seconds[1]), MOST_SECONDS)
        ratios = {width: min(max(1.0, time / base), _MOST_RATIO) for width, time in seconds.items()}
        self._ratios[_depth_class(depth)] = ratios
        self._warm[_depth_class(depth)] = dict(ratios)
        self._forget()

    def record(self) -> dict[str, dict[str, float]]:
        """The ratios as JSON, by class of depth and width."""
        return {
            str(which): {str(width): ratio for width, ratio in sorted(ratios.items())}
            for which, ratios in sorted(self._ratios.items())
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Mapping[str, float]]) -> CostCurve:
        """The inverse of ``record``; ``base`` is unknown. Raises ValueError for anything else."""
        curve = cls()
        try:
            for which, ratios in record.items():
                read = {int(width): float(ratio) for width, ratio in ratios.items()}
                if not 0 <= int(which) <= len(DEPTHS):
                    raise ValueError
                if any(
                    not 1.0 <= ratio <= _MOST_RATIO or width < 1 for width, ratio in read.items()
                ):
                    raise ValueError
                curve._ratios[int(which)] = read
                curve._warm[int(which)] = dict(read)
        except (AttributeError, TypeError, ValueError) as error:
            raise ValueError("no cost curve") from error
        return curve

    def _doubt_strange(self) -> None:
        """Bring what is far above the warm-up's ratios half of the way back."""
        for which, warm in self._warm.items():
            ratios = self._ratios[which]
            for width, ratio in warm.items():
                if ratios[width] > _STRANGE * ratio:
                    ratios[width] = math.sqrt(ratios[width] * _STRANGE * ratio)
        self._forget()

    def _forget(self) -> None:
        """The ratios have changed."""
        self._lines.clear()
        self._bounds.clear()

    def _nearest(self, which: int) -> dict[int, float]:
        """The ratios of class ``which``, or of the nearest one that has any."""
        if which in self._ratios or not self._ratios:
            return self._ratios.get(which, {1: 1.0})
        return self._ratios[min(self._ratios, key=lambda other: (abs(other - which), other))]

    def _line(self, which: int) -> tuple[list[int], list[float]]:
        """Widths and ratios, ascending and never falling: a wider batch is not cheaper."""
        line = self._lines.get(which)
        if line is None:
            ratios = {1: 1.0} | self._nearest(which)
            widths = sorted(ratios)
            smooth: list[float] = []
            for width in widths:
                smooth.append(max(ratios[width], smooth[-1] if smooth else 1.0))
            line = self._lines[which] = widths, smooth
        return line


def _depth_class(depth: int) -> int:
    return bisect_left(DEPTHS, depth)
