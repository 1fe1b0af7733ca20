"""Drafts from the text itself: what followed when the same tokens stood there before.

The rules are those of llama.cpp's ``common/ngram-map.cpp``.
"""

from __future__ import annotations

from gguf_spec.drafters.ngram_base import MAX_INDEXED, NgramDrafter, NgramIndex
from gguf_spec.drafters.pool import Pool


class NgramSimple(NgramDrafter):
    """``ngram-simple``: the tokens that followed the latest earlier occurrence of the last
    ``size_n`` tokens, up to ``size_m`` of them.

    As in llama.cpp (``common_ngram_simple_draft``) a history of up to ``size_n + size_m + 2``
    tokens is too short, an occurrence at position 0 does not count, and a draft of fewer than
    ``size_n`` tokens is not offered. llama.cpp scans the history backwards in every round; here
    a dictionary from n-gram to its latest start, extended as the history grows, finds the same
    occurrence in constant time. None of these limits applies to the texts of ``pool``.
    """

    spec_type = "ngram-simple"

    def __init__(
        self,
        size_n: int = 12,
        size_m: int = 48,
        pool: Pool | None = None,
        *,
        max_indexed: int = MAX_INDEXED,
        trusting: bool = True,
    ) -> None:
        self.size_n = size_n
        self.size_m = size_m
        self._index = NgramIndex(size_n)
        super().__init__(size_m, pool, max_indexed=max_indexed, trusting=trusting)
        self._reset(0)

    def _find(self, limit: int) -> list[int]:
        history, n = self._history, self.size_n
        length = len(history)
        # The nearest that may be found ends before the last two tokens.
        self._index.extend(history, length - n - 1)
        if length <= n + self.size_m + 2:
            return []
        start = self._index.find(history, history[length - n :])
        # The last token is not part of what may be copied: the target has not seen it yet.
        end = min(start + n + self.size_m, length - 1)
        if start < 0 or end - (start + n) < n:
            return []
        self._copied_from(start + n)
        return history[start + n : end]

    def _find_in_pool(self, pool: Pool) -> tuple[list[int], int]:
        if len(self._history) < self.size_n:
            return [], 0
        return pool.longest(self._history, self.size_n, self.size_m, 1)

    def _reset(self, base: int) -> None:
        self._index.clear(max(base, 1))
