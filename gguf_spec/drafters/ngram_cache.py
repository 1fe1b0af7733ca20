"""Drafts made token by token from counts of what followed the last few tokens.

The rules are those of llama.cpp's ``common/ngram-cache.cpp``. Its bigram and unigram drafts are
the cheapest drafts that Leviathan et al. (2023, section 3.6) consider.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping

from gguf_spec.drafters.ngram_base import MAX_INDEXED, NgramDrafter
from gguf_spec.drafters.ngram_counts import LONGEST, Counts, CountTable
from gguf_spec.drafters.pool import Pool

_STATIC = 2  # the length of n-gram that static counts are asked for

# By length of n-gram: the least number of samples, and the least percentage of the best token.
_LAX = ((1, 2, 66), (2, 2, 50), (3, 1, 50), (4, 1, 50))
_STRICT = ((1, 4, 75), (2, 3, 66), (3, 2, 66), (4, 2, 66))


class NgramCache(NgramDrafter):
    """``ngram-cache``: the token that most often followed the last four tokens, or else three, two
    or one, appended, and so on up to ``n_draft`` tokens.

    Counts of this text come first, with lax thresholds; then those of earlier texts, ``dynamic``
    and ``pool``, with strict ones; each weighted with ``static`` counts of a large corpus, which
    are also the last resort. llama.cpp never counts an n-gram that spans two rounds, and never
    starts over when the text is another; here the counts are always those of the history.
    """

    spec_type = "ngram-cache"

    def __init__(
        self,
        n_draft: int = 8,
        pool: Pool | None = None,
        *,
        static: CountTable | None = None,
        dynamic: CountTable | None = None,
        max_indexed: int = MAX_INDEXED,
        trusting: bool = True,
    ) -> None:
        self.n_draft = n_draft
        self._static: CountTable = static or {}
        self._dynamic: CountTable = dynamic or {}
        super().__init__(n_draft, pool, max_indexed=max_indexed, trusting=trusting)
        self._reset(0)

    def _find(self, limit: int) -> list[int]:
        self._count()
        history = self._history
        if len(history) < _STATIC:
            return []
        last = history[-LONGEST:]
        tokens: list[int] = []
        while len(tokens) < min(self.n_draft, limit):
            token = self._next(last[-LONGEST:])
            if token < 0:
                break
            tokens.append(token)
            last.append(token)
        return tokens

    def _find_in_pool(self, pool: Pool) -> tuple[list[int], int]:
        return [], 0  # asked token by token, in its place between dynamic and static counts

    def _reset(self, base: int) -> None:
        self._counts = Counts()
        self._first = self._counted = base

    def _count(self) -> None:
        """Count every token that has come, after each of the n-grams that it follows."""
        history, counts = self._history, self._counts
        for i in range(self._counted, len(history)):
            token = history[i]
            for n in range(1, min(LONGEST, i - self._first) + 1):
                counts.add(history.ngram(i - n, n), token)
        self._counted = max(self._counted, len(history))

    def _next(self, last: list[int]) -> int:
        """The token to follow ``last``, the last two to four, or -1."""
        keys = [array("i", last[-n:]).tobytes() for n in range(1, len(last) + 1)]
        static = self._static.get(keys[_STATIC - 1], {})
        for n, least, percent in reversed(_LAX[: len(keys)]):
            token = _best(self._counts.get(keys[n - 1]), static, least, percent)
            if token >= 0:
                return token
        for n, least, percent in reversed(_STRICT[: len(keys)]):
            token = _best(self._dynamic.get(keys[n - 1], {}), static, least, percent)
            if token >= 0:
                return token
        if self._pool is not None and self._pool.n_tokens:
            for n, least, percent in reversed(_STRICT[: len(keys)]):
                token = _best(self._pool.followers(last[-n:]), static, least, percent)
                if token >= 0:
                    return token
        return _best(static, {}, *_LAX[_STATIC - 1][1:])


def _best(counts: Mapping[int, int], static: Mapping[int, int], least: int, percent: int) -> int:
    """The token with the greatest count, weighted with 100 times its static count if it has one;
    -1 if the counts are fewer than ``least`` or its own share is less than ``percent``."""
    total, best, best_count, best_weighted = 0, -1, 0, 0
    for token, count in counts.items():
        total += count
        weighted = count * 100 * static[token] if token in static else count
        if weighted > best_weighted:
            best, best_count, best_weighted = token, count, weighted
    return best if total >= least and 100 * best_count >= percent * total else -1
