"""Texts other than the sequence's own from which n-gram drafters may draft."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from gguf_spec.drafters.ngram_predicted import PredictedText

MAX_TOKENS = 262_144
LONGEST_MATCH = 64
"""Tokens before a draft that are compared with those before the place that it is copied from."""
_FACTOR = 6364136223846793005  # Knuth's MMIX multiplier: odd, so that it has an inverse
_INVERSE = pow(_FACTOR, -1, 2**64)


@dataclass(frozen=True, slots=True)
class _Index:
    """The n-grams of all texts that a token follows: hashes, sorted, and where they start; and what
    the tokens of an n-gram count for in its hash."""

    hashes: memoryview
    starts: memoryview
    weights: list[int]


class Pool:
    """Earlier texts and at most one predicted text, as tokens.

    The ``max_tokens`` latest tokens of earlier texts are kept; a text that is added again becomes
    the latest. The predicted text is a part of the pool and not a drafter of its own, so that
    every n-gram type can follow it, under its own name and with its own longest draft, and no spec
    type has to be invented that llama.cpp does not know.

    Look-ups are a binary search in sorted hashes of n-grams, 16 bytes per token and length of
    n-gram: a dictionary of as many Python objects would need ten times that. The index of a length
    is made at the first look-up after the texts changed, by numpy; the search is plain Python,
    which is faster after a decode that emptied the caches. A pool serves one thread.
    """

    def __init__(self, max_tokens: int = MAX_TOKENS) -> None:
        self.max_tokens = max_tokens
        self.n_tokens = 0
        """Tokens of the earlier texts."""
        self.predicted: PredictedText | None = None
        self._texts: dict[bytes, int] = {}  # bytes of 32-bit tokens -> tokens; the latest last
        self._joined = b""  # all of them
        self._tokens = memoryview(self._joined).cast("i")
        self._ends: list[int] | None = None  # of the texts among those tokens, ascending
        self._indexes: dict[int, _Index] = {}

    @property
    def texts(self) -> list[list[int]]:
        """The earlier texts, the latest last."""
        return [array("i", raw).tolist() for raw in self._texts]

    def add(self, tokens: Sequence[int]) -> None:
        """Remember a text. Of one longer than the pool the end is kept."""
        kept = tokens[max(len(tokens) - self.max_tokens, 0) :]
        if len(kept) == 0:
            return
        raw = array("i", kept).tobytes()
        self.n_tokens += len(kept) - self._texts.pop(raw, 0)
        self._texts[raw] = len(kept)
        while self.n_tokens > self.max_tokens:
            oldest = next(iter(self._texts))
            self.n_tokens -= self._texts.pop(oldest)
        self._ends = None

    def predict(self, tokens: Sequence[int]) -> None:
        """Expect this output from the next completion on; no tokens: expect nothing."""
        self.predicted = PredictedText(tokens) if len(tokens) else None

    def clear(self) -> None:
        """Forget everything."""
        self.predicted = None
        self._texts.clear()
        self.n_tokens = 0
        self._ends = None

    def longest(self, text: Sequence[int], n: int, length: int, most: int) -> tuple[list[int], int]:
        """Of the ``most`` latest occurrences of the last ``n`` tokens of ``text``, the one before
        which most of ``text`` agrees, of equals the latest: up to ``length`` tokens that followed
        it, and how many agree, as far as is looked. No tokens and 0 if there is none."""
        size = len(text)
        places = self._find(text[size - n :], most)
        if not places:
            return [], 0
        tokens, ends = self._tokens, self._ends or []
        before = text[size - n - 1] if size > n else -1
        best, match = -1, 0
        for start in reversed(places):
            agrees = n
            if start and tokens[start - 1] == before:
                text_start = ends[i - 1] if (i := bisect_right(ends, start)) else 0
                longest = min(size, max(n, LONGEST_MATCH), start + n - text_start)
                while agrees < longest and tokens[start + n - agrees - 1] == text[-agrees - 1]:
                    agrees += 1
            if agrees > match:
                best, match = start, agrees
        begin, end = best + n, ends[bisect_right(ends, best)]
        return tokens[begin : min(end, begin + length)].tolist(), match

    def followers(self, key: Sequence[int], most: int = 64) -> dict[int, int]:
        """How often which token followed the ``most`` latest occurrences of ``key``."""
        counts: dict[int, int] = {}
        for start in self._find(key, most):
            token = self._tokens[start + len(key)]
            counts[token] = counts.get(token, 0) + 1
        return counts

    def _find(self, key: Sequence[int], most: int) -> list[int]:
        """Where the ``most`` latest occurrences of ``key`` start in the joined texts, ascending."""
        if not self._texts:
            return []
        index = self._index(len(key))
        hashed, hashes = 0, index.hashes
        for token, weight in zip(key, index.weights, strict=True):
            hashed += token * weight
        hashed %= 2**64
        begin = bisect_left(hashes, hashed)
        if begin == len(hashes) or hashes[begin] != hashed:
            return []
        end = bisect_right(hashes, hashed, begin)
        # Equal hashes are in the order of the texts.
        found: list[int] = index.starts[max(begin, end - most) : end].tolist()
        raw, joined, size = array("i", key).tobytes(), self._joined, 4 * len(key)
        return [start for start in found if joined[4 * start : 4 * start + size] == raw]

    def _index(self, n: int) -> _Index:
        if self._ends is None:
            self._joined = b"".join(self._texts)
            self._tokens = memoryview(self._joined).cast("i")
            self._ends = list(accumulate(self._texts.values()))
            self._indexes.clear()
        if n not in self._indexes:
            self._indexes[n] = self._make_index(np.asarray(self._tokens), n)
        return self._indexes[n]

    def _make_index(self, tokens: NDArray[np.int32], n: int) -> _Index:
        """With F the factor, the hash of an n-gram t is the sum of t[k] * F**-k modulo 2**64: a
        difference of running sums, times F**start. So the cost does not depend on ``n``."""
        size = max(len(tokens), n)
        inverse = _powers(_INVERSE, size)
        sums = np.zeros(len(tokens) + 1, np.uint64)
        np.cumsum(tokens.astype(np.uint64) * inverse[: len(tokens)], out=sums[1:])
        starts = np.arange(max(len(tokens) - n, 0), dtype=np.int64)
        ends = np.asarray(self._ends)
        text_end = ends[np.searchsorted(ends, starts, side="right")]
        starts = starts[starts + n < text_end]
        hashes = (sums[starts + n] - sums[starts]) * _powers(_FACTOR, size)[starts]
        order = np.argsort(hashes, kind="stable")
        weights: list[int] = inverse[:n].tolist()
        return _Index(hashes[order].data, starts[order].data, weights)


def _powers(base: int, count: int) -> NDArray[np.uint64]:
    """``base`` to the powers 0 to ``count`` - 1 modulo 2**64."""
    powers = np.full(count, base, np.uint64)
    powers[:1] = 1
    return np.multiply.accumulate(powers)
