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
from collections.abc import Callable
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
_U = np.uint64

# 52 random bits and a half: the largest uniform is 1 - 2^-53, so no noise exceeds this.
_NOISE_MAX = -math.log(-math.log1p(-(2.0**-53)))

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

    __slots__ = ("_key", "greedy", "params")

    def __init__(self, params: SamplingParams) -> None:
        self.params = params
        self.greedy = params.temperature <= 0.0
        self._key = _mix((params.seed & _MASK) ^ _GOLDEN)

    def sample(self, logits: Row, position: int) -> int:
        """The token at ``position`` (index in the sequence), given ``logits`` of shape [n_vocab].

        Raises:
            RunError: the largest logit is NaN, so that no token can be chosen.
        """
        if self.greedy:
            token = int(logits.argmax())
        else:
            token = self._draw(logits, position)
        if logits[token] != logits[token]:
            raise RunError(
                f"the model computed NaN logits at position {position}",
                hint="the file may be damaged, or a KV cache type may not suit this model",
            )
        return token

    def noise(self, position: int, ids: Ids) -> Scores:
        """Gumbel noise of the tokens ``ids`` at ``position``; shape like ``ids``."""
        key = _mix((self._key + position * _GOLDEN) & _MASK)
        # splitmix64 (Steele, Lea, Flood 2014): the counter is the token id.
        x = ids.astype(np.uint64) * _U(_GOLDEN) + _U(key)
        x = (x ^ (x >> _U(30))) * _U(_MIX_1)
        x = (x ^ (x >> _U(27))) * _U(_MIX_2)
        x ^= x >> _U(31)
        uniform = ((x >> _U(12)).astype(np.float64) + 0.5) * 2.0**-52
        noise: Scores = -np.log(-np.log(uniform))
        return noise

    def _draw(self, logits: Row, position: int) -> int:
        params = self.params
        unfiltered = params.top_p >= 1.0 and params.min_p <= 0.0 and params.top_k <= 0
        ids = _near(logits, 10.0 * params.temperature) if unfiltered else candidates(logits, params)
        best, token = self._best(logits, ids, position)
        if unfiltered:
            # A token further down wins only with noise that does not exist below this line.
            floor = (best - _NOISE_MAX) * params.temperature
            _, token = self._best(logits, np.flatnonzero(logits >= floor), position)
        return token

    def _best(self, logits: Row, ids: Ids, position: int) -> tuple[float, int]:
        scores = logits[ids].astype(np.float64) / self.params.temperature
        scores += self.noise(position, ids)
        winner = int(scores.argmax())
        return float(scores[winner]), int(ids[winner])


def candidates(logits: Row, params: SamplingParams) -> Ids:
    """Ids that survive top-k, top-p and min-p, in ascending order. Never empty.

    Only logits near the maximum are looked at one by one: all that the filters keep lies there.
    """
    n_vocab = len(logits)
    k = params.top_k if 0 < params.top_k < n_vocab else 0
    floor = float(logits.max()) + math.log(params.min_p) if params.min_p > 0.0 else -math.inf
    if k == 0 and params.top_p >= 1.0:
        return np.flatnonzero(logits >= np.float32(floor))
    ids = _top_k(logits, k) if k else None
    if params.top_p < 1.0:
        ids = _top_p(logits, ids, params.top_p)
    assert ids is not None
    if floor > -math.inf:
        # The most likely token always survives, whatever rounding does to its own floor.
        keep = logits[ids] >= np.float32(min(floor, float(logits[ids].max())))
        ids = ids[keep]
    return ids


def distribution(logits: Row, params: SamplingParams) -> tuple[Ids, Scores]:
    """Candidate ids and their probabilities (float64, sum 1) after filters and temperature."""
    if params.temperature <= 0.0:
        return np.array([int(logits.argmax())]), np.ones(1)
    ids = candidates(logits, params)
    return ids, _softmax(logits[ids].astype(np.float64) / params.temperature)


def probability(logits: Row, token: int) -> float:
    """Probability of ``token`` under a softmax over all of ``logits`` at temperature 1."""
    peak = logits.max()
    total = float(np.exp(logits - peak).sum(dtype=np.float64))
    return math.exp(float(logits[token]) - float(peak)) / total


def _near(logits: Row, span: float) -> Ids:
    return np.flatnonzero(logits >= logits.max() - np.float32(span))


def _widen(logits: Row, enough: Callable[[Ids], bool]) -> Ids:
    """Ids within a growing distance of the maximum, until ``enough`` of them are there."""
    span = _FIRST_SPAN
    while span < 1e6:
        ids = _near(logits, span)
        if len(ids) == len(logits) or enough(ids):
            return ids
        span *= 2.0
    return np.arange(len(logits))


def _top_k(logits: Row, k: int) -> Ids:
    """Ids of the ``k`` largest logits, ascending; of equal ones the lower id is kept."""
    ids = _widen(logits, lambda near: len(near) >= k)
    if len(ids) <= k:
        return ids
    values = logits[ids]
    kth = np.partition(values, len(values) - k)[len(values) - k]
    above = ids[values > kth]
    ties = ids[values == kth][: k - len(above)]
    return np.sort(np.concatenate((above, ties)))


def _top_p(logits: Row, ids: Ids | None, top_p: float) -> Ids:
    """The smallest set of most likely tokens whose probability reaches ``top_p``, ascending.

    ``ids`` restricts the distribution (the result of top-k); None is the whole vocabulary.
    """
    peak = logits.max()
    if ids is None:
        total = float(np.exp(logits - peak).sum(dtype=np.float64))

        def reached(near: Ids) -> bool:
            return float(np.exp(logits[near] - peak).sum(dtype=np.float64)) >= top_p * total

        ids = _widen(logits, reached)
    else:
        total = float(np.exp((logits[ids] - peak).astype(np.float64)).sum())
    weights = np.exp((logits[ids] - peak).astype(np.float64))
    order = np.argsort(-weights, kind="stable")
    reach = int(np.searchsorted(np.cumsum(weights[order]), top_p * total)) + 1
    return np.sort(ids[order[:reach]])


def _softmax(scores: Scores) -> Scores:
    weights = np.exp(scores - scores.max())
    result: Scores = weights / weights.sum()
    return result


def _mix(x: int) -> int:
    """splitmix64's finalizer on one integer of 64 bits."""
    x = ((x ^ (x >> 30)) * _MIX_1) & _MASK
    x = ((x ^ (x >> 27)) * _MIX_2) & _MASK
    return x ^ (x >> 31)
