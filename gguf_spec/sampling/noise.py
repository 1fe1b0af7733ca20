"""Counter-based noise: a hash of (seed, position, token id) instead of a generator with a state."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Ids: TypeAlias = NDArray[np.intp]
Scores: TypeAlias = NDArray[np.float64]

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
# Arrays of no dimension: numpy takes them as they are, while a scalar becomes one in every call,
# which for a few candidates takes a third of the time.
_U_GOLDEN, _U_MIX_1, _U_MIX_2 = (np.array(n, np.uint64) for n in (_GOLDEN, _MIX_1, _MIX_2))
_U_12, _U_27, _U_30, _U_31 = (np.array(n, np.uint64) for n in (12, 27, 30, 31))

_HALF, _STEP = np.array(0.5), np.array(2.0**-52)

# Token ids have 31 bits; the counters above them serve decisions that are not about a token: XTC,
# whether a drawn draft stands, and what replaces it if not. They are independent of each other and
# of the noise that draws the text, and at a position each serves once.
XTC = 1 << 32
ACCEPT = 2 << 32
RESIDUAL = 3 << 32
_DRAFT = 16 << 32


def draft_counter(index: int) -> int:
    """The counter that a drafter draws token ``index`` of a draft with.

    A position is drafted again where the draft before it was rejected earlier. The index makes that
    another draw: nothing that happened since has seen it.
    """
    return _DRAFT + (index << 32)


# Two arrays of so many 64-bit numbers stay in a core's own cache.
_CHUNK = 32_768


class Noise:
    """The noise of one seed."""

    __slots__ = ("_key",)

    def __init__(self, seed: int) -> None:
        self._key = _mix((seed & _MASK) ^ _GOLDEN)

    def gumbel(self, position: int, ids: Ids) -> Scores:
        """Gumbel noise of the tokens ``ids`` at ``position``; shape like ``ids``."""
        # splitmix64 (Steele, Lea, Flood 2014): the counter is the token id.
        x = ids.astype(np.uint64)
        x *= _U_GOLDEN
        x += np.array(self._at(position), np.uint64)
        x ^= x >> _U_30
        x *= _U_MIX_1
        x ^= x >> _U_27
        x *= _U_MIX_2
        x ^= x >> _U_31
        x >>= _U_12
        noise: Scores = x.astype(np.float64)
        noise += _HALF
        noise *= _STEP
        # So far uniform in (0, 1); two negated logarithms make it Gumbel noise.
        np.negative(np.log(noise, out=noise), out=noise)
        np.negative(np.log(noise, out=noise), out=noise)
        return noise

    def uniform(self, position: int, counter: int) -> float:
        """A number in (0, 1) for a decision at ``position`` that is not about a token."""
        bits = _mix((counter * _GOLDEN + self._at(position)) & _MASK) >> 12
        return (bits + 0.5) * 2.0**-52

    def reaching(self, position: int, n_vocab: int, level: float) -> Ids:
        """Ids below ``n_vocab`` whose noise at ``position`` may reach ``level``, ascending.

        None that does is missing; some that do not quite are among them. The comparison is made
        before any logarithm, and before the hash's last step, which leaves the upper 31 bits alone.
        """
        uniform = math.exp(-math.exp(min(-level, 50.0)))
        # One unit of the upper 31 bits lower, for the rounding of the two exponentials.
        least = np.uint64(max(int(uniform * 2.0**31) - 1, 0) << 33)
        key, counters = np.uint64(self._at(position)), _counters(n_vocab)
        x = np.empty(min(_CHUNK, n_vocab), np.uint64)
        y = np.empty_like(x)
        found = []
        for start in range(0, n_vocab, _CHUNK):
            end = min(start + _CHUNK, n_vocab)
            x, y = x[: end - start], y[: end - start]
            np.add(counters[start:end], key, out=x)
            np.bitwise_xor(x, np.right_shift(x, _U_30, out=y), out=x)
            np.multiply(x, _U_MIX_1, out=x)
            np.bitwise_xor(x, np.right_shift(x, _U_27, out=y), out=x)
            np.multiply(x, _U_MIX_2, out=x)
            found.append((x >= least).nonzero()[0] + start)
        return np.concatenate(found)

    def _at(self, position: int) -> int:
        return _mix((self._key + position * _GOLDEN) & _MASK)


@lru_cache(maxsize=2)
def _counters(n_vocab: int) -> NDArray[np.uint64]:
    """What the hash adds for each token; 8 bytes per token."""
    counters: NDArray[np.uint64] = np.arange(n_vocab, dtype=np.uint64)
    counters *= _U_GOLDEN
    counters.flags.writeable = False
    return counters


def _mix(x: int) -> int:
    """splitmix64's finalizer on one integer of 64 bits."""
    x = ((x ^ (x >> 30)) * _MIX_1) & _MASK
    x = ((x ^ (x >> 27)) * _MIX_2) & _MASK
    return x ^ (x >> 31)
