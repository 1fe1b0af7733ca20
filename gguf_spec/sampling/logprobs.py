"""How likely the model itself held a token: a softmax at temperature 1 over its raw logits."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gguf_spec.sampling.maxima import Maxima, Row


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural logarithm of a token's probability, and (token, logarithm) of the likeliest."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


def token_logprob(logits: Row, token: int, n_top: int) -> TokenLogprob:
    """What a row of logits, shape [n_vocab], says of ``token`` and of the ``n_top`` likeliest.

    Bias, penalties, filters, temperature and grammars have no part in it. Computed in float64; a
    logit of -inf gives -inf.
    """
    top = Maxima(logits)
    row = logits.astype(np.float64)
    row -= top.peak
    log_total = math.log(float(np.exp(row).sum()))
    best = top.largest(n_top) if n_top else ()
    return TokenLogprob(
        token,
        float(row[token]) - log_total,
        tuple((int(i), float(row[i]) - log_total) for i in best),
    )
