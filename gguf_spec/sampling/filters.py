"""Which tokens may be drawn, and at which temperature."""

from __future__ import annotations

import math

import numpy as np

from gguf_spec.sampling.maxima import Maxima, Row
from gguf_spec.sampling.noise import Ids, Scores
from gguf_spec.sampling.params import SamplingParams

# Where the search for the largest logits starts, in logits below the maximum. Any value is right;
# this one leaves tens to hundreds of candidates on the models we know.
_FIRST_SPAN = 12.0

# Elements of a float32 array that, with a copy, stay in a core's own cache.
_CHUNK = 16_384

# e to this power is 0 in float32.
_NOTHING = np.float32(-200.0)


def candidates(logits: Row, params: SamplingParams) -> Ids:
    """Ids that survive top-k, top-p and min-p, in ascending order. Never empty."""
    return np.sort(filtered(Maxima(logits), params))


def probability(logits: Row, token: int) -> float:
    """Probability of ``token`` under a softmax over all of ``logits`` at temperature 1."""
    peak = float(logits.max())
    return math.exp(float(logits[token]) - peak) / total_weight(logits, peak)


def filtered(top: Maxima, params: SamplingParams) -> Ids:
    """Ids that survive top-k, top-p and min-p, in no particular order. Never empty.

    In the order of falling logits (ties by id) what each filter keeps is a prefix, so the shortest
    one wins. Only logits near the maximum are sorted: all that the filters keep lies there.
    """
    peak, n_vocab = top.peak, len(top.row)
    # The most likely token always survives, whatever rounding does to its own floor.
    floor = peak + min(math.log(params.min_p), 0.0) if params.min_p > 0.0 else -math.inf
    by_count = 0 < params.top_k < n_vocab
    if params.top_p >= 1.0 and not by_count:
        return top.reaching(floor)
    if not by_count:
        ids = _nucleus(top, params.top_p)
        kept: Ids = ids[top.row[ids] >= np.float32(floor)]
        return kept
    ids = top.largest(params.top_k)
    values = top.row[ids]
    n_kept = int(np.count_nonzero(values >= np.float32(floor)))
    if params.top_p < 1.0:
        reached = weights(values, peak).cumsum()
        wanted = params.top_p * float(reached[-1])
        n_kept = min(n_kept, int(reached.searchsorted(wanted)) + 1)
    return ids[:n_kept]


def without_top_choices(ids: Ids, values: Row, weight: float, peak: float, threshold: float) -> Ids:
    """Indices into ``ids`` that XTC drops: of the tokens whose probability reaches ``threshold``
    all but the least likely one. ``weight`` is the sum of e^(value - peak) over all candidates.

    Source of the rule: ``llama_sample_xtc_apply`` in llama.cpp, without a ``min_keep``; but what
    has no probability at all, as a forbidden token, is never the one that stays.
    """
    own = weights(values, peak)
    choices = ((own >= threshold * weight) & (own > 0.0)).nonzero()[0]
    if len(choices) < 2:
        return choices[:0]
    order = np.lexsort((ids[choices], -values[choices]))
    return choices[order[:-1]]


def dynamic_temperature(params: SamplingParams, entropy: float, n_candidates: int) -> float:
    """The temperature that follows from the candidates' ``entropy`` (nats, at temperature 1).

    Source of the rule: ``llama_sampler_temp_ext_apply`` in llama.cpp.
    """
    if n_candidates < 2:
        return params.temperature
    low = max(0.0, params.temperature - params.dynatemp_range)
    high = params.temperature + params.dynatemp_range
    share = min(max(entropy / math.log(n_candidates), 0.0), 1.0)
    return low + (high - low) * float(share**params.dynatemp_exponent)


def entropy_of(values: Row, peak: float) -> float:
    """Entropy in nats of a softmax over ``values``, whose largest is ``peak``."""
    total = moment = 0.0
    for start in range(0, len(values), _CHUNK):
        below = np.maximum(values[start : start + _CHUNK] - np.float32(peak), _NOTHING)
        weight = np.exp(below)
        total += float(weight.sum())
        moment += float((weight * below).sum())
    return math.log(total) - moment / total


def total_weight(row: Row, peak: float, temperature: float = 1.0) -> float:
    """Sum of e^((logit - peak) / temperature) over all of ``row``."""
    total, largest = 0.0, np.float32(peak)
    inverse = np.float32(1.0 / temperature) if temperature != 1.0 else None
    with np.errstate(over="ignore"):
        for start in range(0, len(row), _CHUNK):
            below = row[start : start + _CHUNK] - largest
            if inverse is not None:
                below *= inverse
            total += float(np.exp(below, out=below).sum())
    return total


def weights(values: Row, peak: float) -> Scores:
    """e^(value - peak) in float64."""
    result: Scores = np.exp(values.astype(np.float64) - peak)
    return result


def _nucleus(top: Maxima, top_p: float) -> Ids:
    """The most likely tokens that together reach ``top_p`` of all weight, ascending."""
    peak, row = top.peak, top.row
    wanted = top_p * total_weight(row, peak)
    span = _FIRST_SPAN
    while True:
        ids = top.reaching(peak - span) if span < 1e6 else np.arange(len(row))
        values = row[ids]
        if len(ids) == len(row) or weights(values, peak).sum() >= wanted:
            break
        span *= 2.0
    falling = -np.sort(-values)
    n_kept = int(weights(falling, peak).cumsum().searchsorted(wanted)) + 1
    if n_kept >= len(ids):
        return ids
    # Of those that equal the last one that is needed, the lowest ids.
    last = falling[n_kept - 1]
    chosen = values > last
    equal = (values == last).nonzero()[0]
    chosen[equal[: n_kept - int(np.count_nonzero(chosen))]] = True
    kept: Ids = ids[chosen]
    return kept
