"""How far batches of several tokens compute what single decoding computes.

A backend may use other kernels for several rows than for one, and its sums then differ in their
last digits. Where they do, and from which width on, is a property of a machine, a model and its
settings, and it is measured (``equality``). Here is what follows from the measurements.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

#: Widths that are compared: every one that short drafts lead to, and the tiers above.
WIDTHS = (*range(1, 17), 24, 32, 64)
#: Depths that are compared by default. llama.cpp pads the cache to multiples of 256 and splits the
#: attention of a single token from 512 on (``ggml_compute_forward_flash_attn_ext`` in ops.cpp).
DEPTHS = (16, 192, 320, 700, 1400, 2800)


@dataclass(frozen=True, slots=True)
class WidthResult:
    """Rows of batches of ``width`` tokens, with ``depth`` tokens in the cache before the first one,
    compared with the rows of single decoding. Logit differences are absolute, over all rows."""

    width: int
    depth: int
    rows: int
    identical_rows: int
    max_logit_difference: float
    argmax_flips: int

    @property
    def identical(self) -> bool:
        """Whether every row was, bit for bit."""
        return self.identical_rows == self.rows

    def record(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> WidthResult:
        """The inverse of ``record``. Raises TypeError, KeyError or ValueError for anything else."""
        return cls(
            width=int(record["width"]),
            depth=int(record["depth"]),
            rows=int(record["rows"]),
            identical_rows=int(record["identical_rows"]),
            max_logit_difference=float(record["max_logit_difference"]),
            argmax_flips=int(record["argmax_flips"]),
        )


@dataclass(frozen=True, slots=True)
class WidthLimits:
    """The widest batches that compute what single decoding does, by depth.

    ``limits[i]`` holds at ``depths[i]``, both ascending in depth. Between two depths the smaller
    of their limits holds. Before the first the first one does: a shorter cache is not split in more
    ways. Behind the last nothing is known, and 1 holds.
    """

    depths: tuple[int, ...] = ()
    limits: tuple[int, ...] = ()

    def at(self, depth: int) -> int:
        """The most rows that a batch may have after ``depth`` tokens in the cache."""
        if not self.depths or depth > self.depths[-1]:
            return 1
        right = bisect_left(self.depths, depth)
        if self.depths[right] == depth:
            return self.limits[right]
        return min(self.limits[max(right - 1, 0) : right + 1])

    @property
    def deepest(self) -> int:
        """The depth up to which anything is known, 0 if nothing is."""
        return self.depths[-1] if self.depths else 0

    @property
    def narrowest(self) -> int:
        """The limit that holds at every known depth; 1 if nothing is known."""
        return min(self.limits, default=1)


def limits_of(results: Iterable[WidthResult]) -> WidthLimits:
    """What may be drafted for, from the measurements: at each depth the largest width up to which
    every width was measured and identical."""
    by_depth: dict[int, dict[int, bool]] = {}
    for result in results:
        by_depth.setdefault(result.depth, {})[result.width] = result.identical
    depths = tuple(sorted(by_depth))
    return WidthLimits(depths, tuple(_limit(by_depth[depth]) for depth in depths))


def _limit(identical: Mapping[int, bool]) -> int:
    width = 1
    while identical.get(width + 1, False):
        width += 1
    return width


def measured_depths(n_ctx: int, n_rows: int, depths: Sequence[int] = DEPTHS) -> tuple[int, ...]:
    """``depths`` that fit into a context with ``n_rows`` rows behind them; of a context that is
    shorter than all of them, the deepest that fits."""
    fitting = tuple(depth for depth in depths if depth + n_rows <= n_ctx)
    return fitting or ((n_ctx - n_rows,) if n_ctx > n_rows else ())
