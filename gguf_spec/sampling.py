"""Sampling as a pure function: the token at a position depends on logits, seed and position alone.

A token is drawn by the Gumbel-max rule: add Gumbel noise to the log-probabilities of the candidates
and take the largest. The noise is counter-based, keyed by (seed, position, token id), so there is
no random state to save or to roll back. Plain and speculative decoding therefore draw the same
token from the same logits, and a drafter that is handed the same noise agrees with the target far
more often than an independent draw would.

The candidates are filtered in llama.cpp's order: top-k, top-p, min-p, then temperature
(``common_params_sampling.samplers``). Filters look at probabilities at temperature 1, as there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from gguf_spec.errors import RunError

Row: TypeAlias = NDArray[np.float32]
Ids: TypeAlias = NDArray[np.intp]
Scores: TypeAlias = NDArray[np.float64]

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_U_GOLDEN, _U_MIX_1, _U_MIX_2 = np.uint64(_GOLDEN), np.uint64(_MIX_1), np.uint64(_MIX_2)
_U_12, _U_27, _U_30, _U_31 = np.uint64(12), np.uint64(27), np.uint64(30), np.uint64(31)

# 52 random bits and a half: the largest uniform is 1 - 2^-53, so no noise exceeds this.
_NOISE_MAX = -math.log(-math.log1p(-(2.0**-53)))

# Beyond these a temperature changes nothing any more, but would make the arithmetic overflow.
_COLDEST, _HOTTEST = 1e-30, 1e30

# More logits than this are not worth sorting for a top-k.
_SORTABLE = 1024

# Where the search for the largest logits starts, in logits below the maximum. Any value is right;
# this one leaves tens to hundreds of candidates on the models we know.
_FIRST_SPAN = 12.0


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """What shapes the distribution that tokens are drawn from.

    ``temperature`` 0 takes the most likely token. ``top_k`` 0, ``top_p`` 1 and ``min_p`` 0 switch
    the filter off. ``seed`` is any integer; its lowest 64 bits count.
    """

    temperature: float = 0.0
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    seed: int = 0


class Sampler:
    """Draws the token at a position from a row of logits; holds no state that changes."""

    __slots__ = ("_key", "_temperature", "_unfiltered", "greedy", "params")

    def __init__(self, params: SamplingParams) -> None:
        self.params = params
        self.greedy = params.temperature <= 0.0
        self._temperature = _clamped(params.temperature)
        self._unfiltered = params.top_k <= 0 and params.top_p >= 1.0 and params.min_p <= 0.0
        self._key = _mix((params.seed & _MASK) ^ _GOLDEN)

    def sample(self, logits: Row, position: int) -> int:
        """The token at ``position`` (index in the sequence), given ``logits`` of shape [n_vocab].

        Raises:
            RunError: the largest logit is NaN or infinite, so that no token can be chosen.
        """
        token = int(logits.argmax())
        peak = float(logits[token])
        if not math.isfinite(peak):
            raise RunError(
                f"the model computed no usable logits at position {position}: "
                f"the largest is {_name(peak)}",
                hint="the file may be damaged, or a KV cache type may not suit this model",
            )
        return token if self.greedy else self._draw(logits, peak, position)

    def noise(self, position: int, ids: Ids) -> Scores:
        """Gumbel noise of the tokens ``ids`` at ``position``; shape like ``ids``."""
        key = _mix((self._key + position * _GOLDEN) & _MASK)
        # splitmix64 (Steele, Lea, Flood 2014): the counter is the token id.
        x = ids.astype(np.uint64)
        x *= _U_GOLDEN
        x += np.uint64(key)
        x ^= x >> _U_30
        x *= _U_MIX_1
        x ^= x >> _U_27
        x *= _U_MIX_2
        x ^= x >> _U_31
        x >>= _U_12
        noise: Scores = x.astype(np.float64)
        noise += 0.5
        noise *= 2.0**-52
        # So far uniform in (0, 1); two negated logarithms make it Gumbel noise.
        np.negative(np.log(noise, out=noise), out=noise)
        np.negative(np.log(noise, out=noise), out=noise)
        return noise

    def _draw(self, logits: Row, peak: float, position: int) -> int:
        if not self._unfiltered:
            return self._best(logits, _candidates(logits, peak, self.params), peak, position)[1]
        ids = _from(logits, peak - 10.0 * self._temperature)
        best, _ = self._best(logits, ids, peak, position)
        # A token further down wins only with noise that does not exist below this line.
        ids = _from(logits, peak - (_NOISE_MAX - best) * self._temperature)
        return self._best(logits, ids, peak, position)[1]

    def _best(self, logits: Row, ids: Ids, peak: float, position: int) -> tuple[float, int]:
        scores = (logits[ids].astype(np.float64) - peak) / self._temperature
        scores += self.noise(position, ids)
        winner = int(scores.argmax())
        return float(scores[winner]), int(ids[winner])


def candidates(logits: Row, params: SamplingParams) -> Ids:
    """Ids that survive top-k, top-p and min-p, in ascending order. Never empty."""
    return _candidates(logits, float(logits.max()), params)


def distribution(logits: Row, params: SamplingParams) -> tuple[Ids, Scores]:
    """Candidate ids and their probabilities (float64, sum 1) after filters and temperature."""
    if params.temperature <= 0.0:
        return np.array([int(logits.argmax())]), np.ones(1)
    peak = float(logits.max())
    ids = _candidates(logits, peak, params)
    temperature = _clamped(params.temperature)
    weights = np.exp((logits[ids].astype(np.float64) - peak) / temperature)
    return ids, weights / weights.sum()


def probability(logits: Row, token: int) -> float:
    """Probability of ``token`` under a softmax over all of ``logits`` at temperature 1."""
    peak = logits.max()
    total = float(np.exp(logits - peak).sum(dtype=np.float64))
    return math.exp(float(logits[token]) - float(peak)) / total


def _candidates(logits: Row, peak: float, params: SamplingParams) -> Ids:
    """See ``candidates``; ``peak`` is the largest logit.

    In the order of falling logits (ties by id) what each filter keeps is a prefix, so the shortest
    one wins. Only logits near the maximum are sorted: all that the filters keep lies there.
    """
    n_vocab = len(logits)
    k = params.top_k if 0 < params.top_k < n_vocab else n_vocab
    # The most likely token always survives, whatever rounding does to its own floor.
    floor = peak + min(math.log(params.min_p), 0.0) if params.min_p > 0.0 else -math.inf
    if k == n_vocab and params.top_p >= 1.0:
        return _from(logits, floor)

    weight = 0.0  # what top-p has to reach; of the whole vocabulary unless top-k cuts it
    if k == n_vocab:
        weight = params.top_p * float(np.exp(logits - np.float32(peak)).sum(dtype=np.float64))
    span = _FIRST_SPAN
    while True:
        ids = _from(logits, peak - span) if span < 1e6 else np.arange(n_vocab)
        values = logits[ids]
        if len(ids) == n_vocab or (
            len(ids) >= k if k < n_vocab else _weights(values, peak).sum() >= weight
        ):
            break
        span *= 2.0
    if k < len(ids) and len(ids) > _SORTABLE:
        kept = np.flatnonzero(values >= np.partition(values, len(values) - k)[len(values) - k])
        ids, values = ids[kept], values[kept]
    order = np.argsort(-values, kind="stable")[:k]
    ids, values = ids[order], values[order]

    n_kept = len(ids)
    if params.top_p < 1.0:
        reached = _weights(values, peak).cumsum()
        if k < n_vocab:
            weight = params.top_p * float(reached[-1])
        n_kept = int(reached.searchsorted(weight)) + 1
    if floor > -math.inf:
        n_kept = min(n_kept, int(np.count_nonzero(values >= np.float32(floor))))
    ids = ids[:n_kept]
    ids.sort()
    return ids


def _from(logits: Row, floor: float) -> Ids:
    """Ids of the logits that reach ``floor``, ascending."""
    ids: Ids = (logits >= np.float32(floor)).nonzero()[0]
    return ids


def _weights(logits: Row, peak: float) -> Scores:
    weights: Scores = np.exp(logits.astype(np.float64) - peak)
    return weights


def _clamped(temperature: float) -> float:
    return min(max(temperature, _COLDEST), _HOTTEST)


def _name(peak: float) -> str:
    return "NaN" if math.isnan(peak) else str(peak)


def _mix(x: int) -> int:
    """splitmix64's finalizer on one integer of 64 bits."""
    x = ((x ^ (x >> 30)) * _MIX_1) & _MASK
    x = ((x ^ (x >> 27)) * _MIX_2) & _MASK
    return x ^ (x >> 31)
