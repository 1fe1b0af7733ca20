"""Texts other than the sequence's own from which n-gram drafters may draft."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gguf_spec.drafters.ngram_predicted import PredictedText

MAX_TOKENS = 262_144
_FACTOR = 6364136223846793005  # Knuth's MMIX multiplier: odd, so that it has an inverse
_INVERSE = pow(_FACTOR, -1, 2**64)


@dataclass(frozen=True, slots=True)
class _Index:
    """The n-grams of all texts that a token follows: hashes, sorted, and where they start."""

    hashes: NDArray[np.uint64]
    starts: NDArray[np.int64]
    weights: NDArray[np.uint64]


class Pool:
    """Earlier texts and at most one predicted text, as tokens.

    The ``max_tokens`` latest tokens of earlier texts are kept; a text that is added again becomes
    the latest. The predicted text is a part of the pool and not a drafter of its own, so that
    every n-gram type can follow it, under its own name and with its own longest draft, and no spec
    type has to be invented that llama.cpp does not know.

    Look-ups are a binary search in sorted hashes of n-grams, 16 bytes per token and length of
    n-gram: a dictionary of as many Python objects would need ten times that. The index of a length
    is made at the first look-up after the texts changed. A pool serves one thread.
    """

    def __init__(self, max_tokens: int = MAX_TOKENS) -> None:
        self.max_tokens = max_tokens
        self.n_tokens = 0
        """Tokens of the earlier texts."""
        self.predicted: PredictedText | None = None
        self._texts: dict[bytes, int] = {}  # bytes of 32-bit tokens -> tokens; the latest last
        self._all: NDArray[np.int32] | None = None
        self._ends: NDArray[np.int64] = np.zeros(0, np.int64)
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
        self._all = None

    def predict(self, tokens: Sequence[int]) -> None:
        """Expect this output from the next completion on; no tokens: expect nothing."""
        self.predicted = PredictedText(tokens) if len(tokens) else None

    def clear(self) -> None:
        """Forget everything."""
        self.predicted = None
        self._texts.clear()
        self.n_tokens = 0
        self._all = None

    def longest(self, last: Sequence[int], n: int, length: int, most: int) -> tuple[list[int], int]:
        """Of the ``most`` latest occurrences of the last ``n`` tokens of ``last``, the one before
        which most of ``last`` agrees, of equals the latest: up to ``length`` tokens that followed
        it, and how many agree. No tokens and 0 if there is none."""
        found = self._find(last[-n:], most)
        if not len(found) or self._all is None:
            return [], 0
        begin, match = int(found[-1]) + n, 0
        for place in (found[::-1] + n).tolist():
            text_start = int(self._ends[self._text_of(place) - 1]) if self._text_of(place) else 0
            agrees = _agreement(self._all[max(place - len(last), text_start) : place], last)
            if agrees > match:
                begin, match = place, agrees
        end = int(self._ends[self._text_of(begin)])
        tokens: list[int] = self._all[begin : min(end, begin + length)].tolist()
        return tokens, match

    def _text_of(self, position: int) -> int:
        """Which of the joined texts ``position`` lies in."""
        return int(np.searchsorted(self._ends, position, side="right"))

    def followers(self, key: Sequence[int], most: int = 64) -> dict[int, int]:
        """How often which token followed the ``most`` latest occurrences of ``key``."""
        counts: dict[int, int] = {}
        found = self._find(key, most)
        if len(found) and self._all is not None:
            for token in self._all[found + len(key)].tolist():
                counts[token] = counts.get(token, 0) + 1
        return counts

    def _find(self, key: Sequence[int], most: int) -> NDArray[np.int64]:
        """Where the ``most`` latest occurrences of ``key`` start in the joined texts, ascending."""
        if not self._texts:
            return self._ends[:0]
        index = self._index(len(key))
        tokens = np.asarray(key, np.int32)
        hashed = (tokens.astype(np.uint64) * index.weights).sum(dtype=np.uint64)
        end = int(index.hashes.searchsorted(hashed, "right"))
        # Equal hashes are in the order of the texts.
        begin = max(int(index.hashes.searchsorted(hashed, "left")), end - most)
        found = index.starts[begin:end]
        if not len(found) or self._all is None:
            return found
        same = (self._all[found[:, None] + np.arange(len(key))] == tokens).all(axis=1)
        matching: NDArray[np.int64] = found[same]
        return matching

    def _index(self, n: int) -> _Index:
        if self._all is None:
            self._all = np.frombuffer(b"".join(self._texts), np.int32)
            self._ends = np.cumsum(np.fromiter(self._texts.values(), np.int64))
            self._indexes.clear()
        if n not in self._indexes:
            self._indexes[n] = self._make_index(self._all, n)
        return self._indexes[n]

    def _make_index(self, tokens: NDArray[np.int32], n: int) -> _Index:
        """With F the factor, the hash of an n-gram t is the sum of t[k] * F**-k modulo 2**64: a
        difference of running sums, times F**start. So the cost does not depend on ``n``."""
        size = max(len(tokens), n)
        inverse = _powers(_INVERSE, size)
        sums = np.zeros(len(tokens) + 1, np.uint64)
        np.cumsum(tokens.astype(np.uint64) * inverse[: len(tokens)], out=sums[1:])
        starts = np.arange(max(len(tokens) - n, 0), dtype=np.int64)
        text_end = self._ends[np.searchsorted(self._ends, starts, side="right")]
        starts = starts[starts + n < text_end]
        hashes = (sums[starts + n] - sums[starts]) * _powers(_FACTOR, size)[starts]
        order = np.argsort(hashes, kind="stable")
        return _Index(hashes[order], starts[order], inverse[:n])


def _agreement(a: NDArray[np.int32], b: Sequence[int]) -> int:
    """How many of the last tokens of both agree."""
    n = 0
    for one, other in zip(a[::-1].tolist(), reversed(b), strict=False):
        if one != other:
            break
        n += 1
    return n


def _powers(base: int, count: int) -> NDArray[np.uint64]:
    """``base`` to the powers 0 to ``count`` - 1 modulo 2**64."""
    powers = np.full(count, base, np.uint64)
    powers[:1] = 1
    return np.multiply.accumulate(powers)
