"""Drafts made token by token: what followed these tokens last?

The rules are those of llama.cpp's ``common/ngram-mod.cpp`` and ``common/speculative.cpp``.
"""

from __future__ import annotations

from gguf_spec.drafters.ngram_base import MAX_INDEXED, NgramDrafter, NgramIndex
from gguf_spec.drafters.pool import Pool

_LOW_ROUNDS = 5


class NgramMod(NgramDrafter):
    """``ngram-mod``: the token that last followed the last ``n_match`` tokens, then the token that
    last followed ``n_match`` tokens including that one, and so on to ``n_max``. A chain that breaks
    before ``n_min`` tokens is no draft.

    llama.cpp keeps one table of 4,194,304 unchecked hash slots for all sequences, and empties it
    when a quarter is in use, the current prompt included. Here the table is a dictionary of the
    sequence's own n-grams: no two share a slot, the latest half of a text always stays, and what
    is remembered of other texts is the business of ``pool``. As in llama.cpp the table is emptied
    after five drafts in a row of which less than a quarter was right; then only what comes is
    learned, until the next completion begins.
    """

    spec_type = "ngram-mod"

    def __init__(
        self,
        n_match: int = 24,
        n_min: int = 48,
        n_max: int = 64,
        pool: Pool | None = None,
        *,
        max_indexed: int = MAX_INDEXED,
        trusting: bool = True,
    ) -> None:
        self.n_match = n_match
        self.n_max = n_max
        self.n_min = min(n_min, n_max)
        self._index = NgramIndex(n_match)
        self._emptied = False
        super().__init__(n_max, pool, max_indexed=max_indexed, trusting=trusting)
        self._reset(0)

    def _find(self, limit: int) -> list[int]:
        history, index, n = self._history, self._index, self.n_match
        length = len(history)
        index.extend(history, length - n)
        if length < n:
            return []
        window = history[length - n :]
        tokens: list[int] = []
        # What is beyond the limit is of no use, except to show that the chain is long enough.
        wanted = min(self.n_max, max(limit, self.n_min))
        while len(tokens) < wanted:
            start = index.find(history, window[len(tokens) :])
            if start < 0:
                break
            if not tokens:
                self._copied_from(start + n)
            token = history[start + n]
            tokens.append(token)
            window.append(token)
        return tokens if len(tokens) >= self.n_min else []

    def _find_in_pool(self, pool: Pool) -> tuple[list[int], int]:
        if len(self._history) < self.n_match:
            return [], 0
        tokens, match = pool.longest(self._history, self.n_match, self.n_max, 1)
        return (tokens, match) if len(tokens) >= self.n_min else ([], 0)

    def _learn(self, offered: int, matched: int, refuted: bool) -> None:
        if not refuted or 4 * matched >= offered:
            self._low = 0
            return
        self._low += 1
        if self._low >= _LOW_ROUNDS:
            self._reset(len(self._history))
            self._emptied = True

    def _start_trust(self) -> None:
        super()._start_trust()
        if self._emptied:
            self._forget()

    def _reset(self, base: int) -> None:
        self._index.clear(base)
        self._low = 0
        self._emptied = False
