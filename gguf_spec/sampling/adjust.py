"""Logits that change before anything is chosen: logit bias, penalties, and DRY."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from gguf_spec.sampling.maxima import Row
from gguf_spec.sampling.params import SamplingParams

#: llama.cpp's ``dry_sequence_breakers``: texts that no repetition reaches across.
DRY_BREAKERS = ("\n", ":", '"', "*")

# The largest float32. Its logarithm is where llama.cpp stops the DRY penalty from growing.
_MOST = float(np.finfo(np.float32).max)
_LOG_MOST = 88.7228391

# What -1 stands for: all tokens there are. llama.cpp takes the context size.
_ALL = 2**31 - 1


class Adjuster:
    """Bias, penalties and DRY, applied to a copy of the logits.

    The logits are libllama's memory and stay as they are. Copying 262,144 of them into an array
    that is kept costs 25 µs, and everything after it needs no special cases.

    ``breaks`` tells whether a token's text contains a DRY sequence breaker. llama.cpp also lets
    several tokens make up one breaker of several characters; its own breakers have one character
    each, and there the two rules are the same.
    """

    __slots__ = (
        "_bias",
        "_breaks",
        "_copy",
        "_dry_last_n",
        "_last_n",
        "_params",
        "active",
        "lookback",
    )

    def __init__(self, params: SamplingParams, breaks: Callable[[int], bool] | None) -> None:
        self._params = params
        # The answer is asked for again with every token, and may cost a call of libllama.
        self._breaks: Callable[[int], bool] = lru_cache(4096)(breaks or (lambda token: False))
        self._copy: Row = np.empty(0, np.float32)
        bias: dict[int, float] = {}
        for token, value in params.logit_bias:
            bias[token] = bias.get(token, 0.0) + value
        self._bias = {
            token: min(max(value, -_MOST), _MOST) if math.isfinite(value) else value
            for token, value in bias.items()
        }
        # Mirostat's chain has the bias only.
        last_n = params.penalty_last_n if params.penalizes and not params.mirostat else 0
        dry_last_n = params.dry_penalty_last_n if params.dries and not params.mirostat else 0
        self._last_n = last_n if last_n >= 0 else _ALL
        self._dry_last_n = dry_last_n if dry_last_n >= 0 else _ALL
        self.lookback = max(self._last_n, self._dry_last_n)
        self.active = bool(bias) or self.lookback > 0

    def adjusted(self, logits: Row, previous: Sequence[int]) -> Row:
        """The logits to choose from after the tokens ``previous``. Valid until the next call.

        Tokens that the vocabulary of ``logits`` does not have are passed over.
        """
        row = self.writable(logits)
        # Penalties without bounds are allowed, and as good as infinite.
        with np.errstate(all="ignore"):
            if self._bias:
                ids, values = _known(self._bias, len(row))
                row[ids] += values
            if self.lookback and previous:
                if self._params.penalizes:
                    self._penalize(row, previous)
                if self._params.dries:
                    ids, values = _known(self._repetitions(previous), len(row))
                    row[ids] -= values
        return row

    def writable(self, logits: Row) -> Row:
        """``logits`` in memory of our own: a copy, unless they are one already."""
        if logits is self._copy:
            return logits
        if len(self._copy) != len(logits):
            self._copy = np.empty(len(logits), np.float32)
        np.copyto(self._copy, logits)
        return self._copy

    def _penalize(self, row: Row, previous: Sequence[int]) -> None:
        """Source of the rule: ``llama_sampler_penalties_apply``; float32 as there."""
        params = self._params
        ids, counts = _known(Counter(previous[-self._last_n :]), len(row))
        logits = row[ids]
        factor = np.float32(params.repeat_penalty)
        logits = np.where(logits <= 0.0, logits * factor, logits / factor)
        counts *= np.float32(params.frequency_penalty)
        counts += np.float32(params.presence_penalty)
        row[ids] = logits - counts

    def _repetitions(self, previous: Sequence[int]) -> dict[int, float]:
        """What DRY takes off which tokens' logits. Source: ``llama_sampler_dry_apply``.

        A token that would extend a repetition of m tokens at the end of the text to m + 1 loses
        multiplier * base^(m - allowed length), if m reaches the allowed length. Repetitions do not
        reach back across a breaker, and breakers lose nothing.
        """
        params, breaks = self._params, self._breaks
        allowed = params.dry_allowed_length
        newest_first = list(previous[-self._dry_last_n :])[::-1]
        n = len(newest_first)
        if n <= allowed:
            return {}
        longest = next((i for i, token in enumerate(newest_first) if breaks(token)), n)
        if longest < allowed:
            return {}
        extended: dict[int, int] = {}
        lengths = _shared_with_start(newest_first)
        for i in range(1, n):
            length = min(lengths[i], longest)
            if length >= allowed:
                token = newest_first[i - 1]  # what followed there
                if length > extended.get(token, -1):
                    extended[token] = length
        most = 0
        if params.dry_base > 1.000001:
            most = int(_LOG_MOST / math.log(params.dry_base))
        result = {}
        for token, length in extended.items():
            if not breaks(token):
                exponent = min(length - allowed, most) if most > 0 else length - allowed
                result[token] = min(params.dry_multiplier * params.dry_base**exponent, _MOST)
        return result


def _known(
    by_token: dict[int, float] | Counter[int], n_vocab: int
) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
    """Keys below ``n_vocab``, and their values."""
    known = [token for token in by_token if 0 <= token < n_vocab]
    return np.array(known, np.intp), np.array([by_token[token] for token in known], np.float32)


def _shared_with_start(tokens: list[int]) -> list[int]:
    """For each index, how many tokens from there on repeat those at the start (Z algorithm:
    linear time, because what lies inside a stretch that is known to repeat need not be compared
    again). The first is 0."""
    n = len(tokens)
    lengths = [0] * n
    left = right = 0  # tokens[left:right] repeat tokens[: right - left]
    for i in range(1, n):
        length = min(lengths[i - left], right - i) if i < right else 0
        while i + length < n and tokens[length] == tokens[i + length]:
            length += 1
        lengths[i] = length
        if i + length > right:
            left, right = i, i + length
    return lengths
