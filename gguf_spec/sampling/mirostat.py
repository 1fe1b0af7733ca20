"""Mirostat (Basu et al. 2021): keep the surprise of the drawn tokens near a target, in bits."""

from __future__ import annotations

import math

import numpy as np

from gguf_spec.sampling.filters import total_weight
from gguf_spec.sampling.maxima import Maxima
from gguf_spec.sampling.noise import Ids, Scores
from gguf_spec.sampling.params import SamplingParams

# From how many of the largest probabilities version 1 estimates Zipf's exponent: llama.cpp's m.
_M = 100


class Mirostat:
    """Both versions, after llama.cpp's ``llama_sampler_mirostat_apply`` and ``…_v2_apply``.

    ``mu``, the most surprise that is allowed (bits), follows the tokens that were drawn: this is
    state, of one generation.
    """

    __slots__ = ("_params", "mu")

    def __init__(self, params: SamplingParams) -> None:
        self._params = params
        self.mu = 2.0 * params.mirostat_tau

    def keep(self, top: Maxima, temperature: float) -> Ids:
        """Ids that may be drawn."""
        if self._params.mirostat == 1:
            return top.largest(self._count(top, temperature))
        log_total = math.log(total_weight(top.row, top.peak, temperature))
        floor = top.peak + temperature * (log_total - self.mu * math.log(2.0))
        # The most likely token is kept whatever it is.
        return top.reaching(floor) if floor <= top.peak else top.largest(1)

    def observe(self, scores: Scores, drawn: int) -> None:
        """Learn that candidate ``drawn`` was taken. ``scores``: logits / temperature of those
        that were kept."""
        below = scores - float(scores.max())
        log_p = float(below[drawn]) - math.log(float(np.exp(below).sum()))
        surprise = -log_p / math.log(2.0)
        self.mu -= self._params.mirostat_eta * (surprise - self._params.mirostat_tau)

    def _count(self, top: Maxima, temperature: float) -> int:
        """How many of the largest version 1 keeps.

        With equal or infinitely distant logits the estimate is no number; llama.cpp's conversion
        to an integer is undefined there, ours takes one token, or all if the number is infinite.
        """
        n_vocab = len(top.row)
        values = top.row[top.largest(_M)].astype(np.float64) / temperature
        values = values[values > -math.inf]
        if len(values) < 2:
            return 1
        t = np.log(np.arange(2, len(values) + 1) / np.arange(1, len(values)))
        zipf = float((t * -np.diff(values)).sum() / (t * t).sum())
        epsilon = zipf - 1.0
        if zipf <= 0.0 or epsilon == 0.0:
            return n_vocab if zipf <= 0.0 else 1
        try:
            k = (epsilon * 2.0**self.mu / (1.0 - n_vocab**-epsilon)) ** (1.0 / zipf)
        except OverflowError:
            return n_vocab
        return min(max(int(k), 1), n_vocab)
