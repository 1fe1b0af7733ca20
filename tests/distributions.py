"""Texts of three tokens drawn through the rules of verification, and a chi-square test on them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gguf_spec.history import History
from gguf_spec.sampling import DraftWay, Row, Sampler, SamplingParams
from gguf_spec.verify import judge

LENGTH = 3
OFF = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)


class Pair(NamedTuple):
    """A target and a drafter of few tokens: logits by the token before, shape [n + 1, n]. The last
    row is for the first token of a text. ``params`` filter both."""

    name: str
    target: NDArray[np.float32]
    draft: NDArray[np.float32]
    params: SamplingParams = OFF


def _table(seed: int, n: int, allowed: Sequence[int] | None = None) -> NDArray[np.float32]:
    table = np.random.default_rng(seed).normal(0.0, 1.2, (n + 1, n)).astype(np.float32)
    if allowed is not None:
        others = [i for i in range(n) if i not in allowed]
        table[:, others] = -np.inf
    return table


PAIRS = (
    Pair("alike", _table(1, 4), _table(1, 4) + 0.5 * _table(2, 4)),
    Pair("strangers", _table(3, 4), _table(4, 4)),
    Pair("supports that overlap", _table(5, 6, (0, 1, 2, 4)), _table(6, 6, (2, 3, 4, 5))),
    Pair("supports that do not", _table(7, 6, (1, 3, 5)), _table(8, 6, (0, 2, 4))),
    Pair("top-k", _table(9, 9), _table(10, 9), SamplingParams(1.0, 3, 1.0, 0.0)),
)


class _At(History):
    """A history of which only the length is looked at: texts at positions of their own share a
    seed."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self._length = length

    def __len__(self) -> int:
        return self._length


Judge = Callable[..., tuple[int, int]]


def draw(
    pair: Pair, way: DraftWay, n_draft: int, texts: range, seed: int, rule: Judge = judge
) -> NDArray[np.int64]:
    """How often each text came, shape [n] * 3. Of each round's draft the text takes what it needs,
    so that drafts reach past its end as they do in a long one."""
    n = pair.target.shape[1]
    sampler = Sampler(replace(pair.params, seed=seed))
    drafter = sampler.for_drafter(way)
    counts = np.zeros([n] * LENGTH, np.int64)
    for number in texts:
        start = number * 16
        text: list[int] = []
        while len(text) < LENGTH:
            position = start + len(text)
            draft, drawn = [], []
            for i in range(n_draft):
                before = (draft or text or [n])[-1]
                one = drafter.propose(pair.draft[before], position + i, (), i, 0.0)
                assert one is not None
                draft.append(one.token)
                if one.probs is not None:
                    drawn.append(one)
            rows = (text or [n])[-1:] + draft

            def logits(row: int, rows: list[int] = rows) -> Row:
                return pair.target[rows[row]]

            n_accepted, last = rule(draft, sampler, _At(position), logits, 0, drawn)
            text += [*draft[:n_accepted], last]
        counts[tuple(text[:LENGTH])] += 1
    return counts


def expected(pair: Pair) -> NDArray[np.float64]:
    """Probability of each text, from softmax and top-k written down plainly; shape [n] * 3."""
    n, k = pair.target.shape[1], pair.params.top_k
    logits = pair.target.astype(np.float64)
    if k:
        logits = np.where(logits >= np.sort(logits, axis=1)[:, [n - k]], logits, -np.inf)
    p = np.exp(logits)
    p /= p.sum(axis=1, keepdims=True)
    first, then = p[n], p[:n]
    result: NDArray[np.float64] = first[:, None, None] * then[:, :, None] * then[None, :, :]
    return result


def p_value(counts: NDArray[np.int64], probs: NDArray[np.float64]) -> float:
    """Chi-square test that ``counts`` come from ``probs``: the chance of so large a deviation.

    Cells with less than 5 expected are one cell. What cannot come, must not.
    """
    if counts[probs == 0.0].any():
        return 0.0
    wanted = counts.sum() * probs[probs > 0.0]
    got = counts[probs > 0.0]
    small = wanted < 5.0
    if small.any():
        wanted = np.append(wanted[~small], wanted[small].sum())
        got = np.append(got[~small], got[small].sum())
    return chi_square_tail(float(((got - wanted) ** 2 / wanted).sum()), len(wanted) - 1)


def chi_square_tail(x: float, freedom: int) -> float:
    """Chance that a chi-square variable exceeds ``x``: the regularised upper gamma function, by
    Lentz's continued fraction, or one minus the series where that converges better."""
    a, half = freedom / 2.0, x / 2.0
    if half <= 0.0:
        return 1.0
    front = math.exp(a * math.log(half) - half - math.lgamma(a))
    if half < a + 1.0:
        term = total = 1.0 / a
        i = a
        while term > total * 1e-15:
            i += 1.0
            term *= half / i
            total += term
        return 1.0 - front * total
    b = half + 1.0 - a
    c, d = 1e300, 1.0 / b
    h = d
    for i in range(1, 10_000):
        an = -i * (i - a)
        b += 2.0
        d = 1.0 / (an * d + b)
        c = b + an / c
        h *= d * c
        if abs(d * c - 1.0) < 1e-15:
            break
    return front * h
