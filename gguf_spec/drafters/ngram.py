"""Drafts from the text itself: what followed when the same tokens stood there before.

The rules are those of llama.cpp's ``common/ngram-map.cpp``.
"""

from __future__ import annotations

from gguf_spec.context import ModelContext, Run
from gguf_spec.drafters.base import Draft
from gguf_spec.history import History
from gguf_spec.sampling import Sampler


class NgramSimple:
    """``ngram-simple``: the tokens that followed the latest earlier occurrence of the last
    ``size_n`` tokens, up to ``size_m`` of them.

    As in llama.cpp (``common_ngram_simple_draft``) a history of up to ``size_n + size_m + 2``
    tokens is too short, an occurrence at position 0 does not count, and a draft of fewer than
    ``size_n`` tokens is not offered. llama.cpp scans the history backwards in every round; here
    a dictionary from n-gram to its latest start, extended as the history grows, finds the same
    occurrence in constant time.
    """

    spec_type = "ngram-simple"

    def __init__(self, size_n: int = 12, size_m: int = 48) -> None:
        self.size_n = size_n
        self.size_m = size_m
        self._history = History()
        self._latest: dict[bytes, int] = {}
        self._indexed = 1
        self._epoch = 0

    def begin(self, history: History) -> None:
        """Read ``history`` from now on."""
        if history is not self._history:
            self._history = history
            self._forget()

    def observe(self, target: ModelContext, run: Run) -> None:
        """Nothing to learn from the target."""

    def draft(self, limit: int, sampler: Sampler) -> Draft:
        """See the class."""
        self._index()
        history, n = self._history, self.size_n
        length = len(history)
        tokens: list[int] = []
        if length > n + self.size_m + 2:
            start = self._latest.get(history.ngram(length - n, n), 0)
            # The last token is not part of what may be copied: the target has not seen it yet.
            end = min(start + n + self.size_m, length - 1)
            if start and end - (start + n) >= n:
                tokens = history[start + n : min(end, start + n + limit)]
        return Draft(tokens, self.spec_type)

    def accept(self, n_accepted: int) -> None:
        """The history is all that counts."""

    def close(self) -> None:
        """Forget the index."""
        self._forget()

    def _index(self) -> None:
        """Index the n-grams that end before the last two tokens, the nearest that may be found."""
        if self._epoch != self._history.epoch:
            self._forget()
        history, n, latest = self._history, self.size_n, self._latest
        end = len(history) - n - 1
        for start in range(self._indexed, end):
            latest[history.ngram(start, n)] = start
        self._indexed = max(self._indexed, end)

    def _forget(self) -> None:
        self._latest.clear()
        self._indexed = 1
        self._epoch = self._history.epoch
