"""Drafts from the text itself, with a memory of which of them were accepted.

The rules are those of llama.cpp's ``common/ngram-map.cpp`` (``common_ngram_map_draft``), except
that there ``min_hits`` is not looked at without values, the length of a key's drafts only ever
shrinks, a majority is found but the tokens after the latest match are drafted, the latest
occurrence is counted again in every round, and a history that shrank aborts the process.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gguf_spec.drafters.ngram_base import MAX_INDEXED, NgramDrafter, NgramIndex, Trust
from gguf_spec.drafters.pool import Pool

_MAX_VALUES = 4
_MAX_KEYS = 65_536


class NgramMapK(NgramDrafter):
    """``ngram-map-k``: the ``size_m`` tokens after the latest earlier occurrence of the last
    ``size_n`` tokens (the key), if that has occurred ``min_hits`` times.

    An occurrence counts once ``size_m`` tokens and two more have come after it, and a history of
    ``2 * size_n + size_m`` tokens or fewer is too short, as in llama.cpp. llama.cpp counts as hits
    the rounds in which it looked a key up; here they are the key's occurrences, which do not
    depend on who drafted. How long a key's drafts are is in :class:`Trust`.
    """

    spec_type = "ngram-map-k"

    def __init__(
        self,
        size_n: int = 12,
        size_m: int = 48,
        min_hits: int = 1,
        pool: Pool | None = None,
        *,
        max_indexed: int = MAX_INDEXED,
        trusting: bool = True,
    ) -> None:
        self.size_n = size_n
        self.size_m = size_m
        self.min_hits = min_hits
        self._index = NgramIndex(size_n)
        self._last: Trust | None = None
        super().__init__(size_m, pool, max_indexed=max_indexed, trusting=trusting)
        self._reset(0)

    def _find(self, limit: int) -> list[int]:
        history, n, m = self._history, self.size_n, self.size_m
        length = len(history)
        self._last = None
        self._index.extend(history, length - n - m - 1)
        if length <= 2 * n + m:
            return []
        start = self._index.find(history, history[length - n :])
        if start < 0 or not self._hits(start):
            return []
        begin, trust = self._choose(history.ngram(start, n), start)
        if begin < 0 or not trust.ready():
            return []
        self._last = trust
        self._copied_from(begin)
        return history[begin : begin + trust.length]

    def _find_in_pool(self, pool: Pool) -> tuple[list[int], int]:
        if len(self._history) < self.size_n:
            return [], 0
        return pool.longest(self._history, self.size_n, self.size_m, 1)

    def _learn(self, offered: int, matched: int, refuted: bool) -> None:
        if self._last is not None:
            self._last.learn(offered, matched, refuted)

    def _reset(self, base: int) -> None:
        self._index.clear(base)
        self._trust: dict[bytes, Trust] = {}
        self._last = None

    def _hits(self, start: int) -> bool:
        """Whether the key at ``start``, its latest place, has occurred ``min_hits`` times."""
        for _ in range(self.min_hits - 1):
            start = self._index.before(start)
            if start < 0:
                return False
        return True

    def _choose(self, key: bytes, start: int) -> tuple[int, Trust]:
        """Where to copy from, -1 for nowhere, and whom to tell what became of it."""
        trust = self._trust.get(key)
        if trust is None:
            if len(self._trust) >= _MAX_KEYS:
                self._trust.clear()
            trust = self._trust[key] = self._make_trust(self.size_m)
        return start + self.size_n, trust


@dataclass(slots=True)
class _Value:
    """An m-gram that followed a key: where it stands first, how often it came."""

    begin: int
    trust: Trust
    count: int = 1


@dataclass(slots=True)
class _Key:
    counted: int = -1  # the latest occurrence that has been counted
    values: list[_Value] = field(default_factory=list)


class NgramMapK4V(NgramMapK):
    """``ngram-map-k4v``: as ``ngram-map-k``, but of up to four different m-grams that followed the
    key the one is drafted that came at least twice as often as the others together.

    A fifth m-gram is not counted, as in llama.cpp.
    """

    spec_type = "ngram-map-k4v"

    def _reset(self, base: int) -> None:
        super()._reset(base)
        self._keys: dict[bytes, _Key] = {}

    def _choose(self, key: bytes, start: int) -> tuple[int, Trust]:
        entry = self._keys.get(key)
        if entry is None:
            if len(self._keys) >= _MAX_KEYS:
                self._keys.clear()
            entry = self._keys[key] = _Key()
        self._count(entry, start)
        best = max(entry.values, key=lambda value: value.count)  # of equals the first
        others = sum(value.count for value in entry.values) - best.count
        return (best.begin if best.count >= 2 * others else -1), best.trust

    def _count(self, entry: _Key, latest: int) -> None:
        """Count the occurrences up to ``latest`` that are new, in the order of the text."""
        new: list[int] = []
        start = latest
        while start > entry.counted:
            new.append(start)
            start = self._index.before(start)
        entry.counted = latest
        history, n, m = self._history, self.size_n, self.size_m
        for start in reversed(new):
            follows = history.ngram(start + n, m)
            for value in entry.values:
                if history.ngram(value.begin, m) == follows:
                    value.count += 1
                    break
            else:
                if len(entry.values) < _MAX_VALUES:
                    entry.values.append(_Value(start + n, self._make_trust(m)))
