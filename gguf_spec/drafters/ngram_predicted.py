"""Following a predicted text: the expected output, such as the file that is being edited."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import cached_property

from gguf_spec.history import History

_KEY = 3
#: Somebody says that the text will come: that counts as much as this many tokens that agree.
EXPECTED = 16
_LONGEST_MATCH = 32
_MOST_CANDIDATES = 64
_NEAR = 32


class PredictedText:
    """The tokens of an expected output, with an index of its 3-grams made when it is needed."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = list(tokens)

    @cached_property
    def ends(self) -> dict[bytes, list[int]]:
        """3-gram (bytes of 32-bit integers) to the positions after its occurrences, ascending."""
        ends: dict[bytes, list[int]] = {}
        text = History(self.tokens)
        for start in range(len(text) - _KEY + 1):
            ends.setdefault(text.ngram(start, _KEY), []).append(start + _KEY)
        return ends


class Follower:
    """Where in a predicted text a completion stands.

    The completion is expected to begin as the text begins, because then there is no n-gram to look
    up. Once it leaves the text, the place is found again by the last tokens of the completion:
    three or more of them anywhere in the text (the longest match, then the one nearest to where
    the completion left it), or two of them within 32 tokens of that place, as after a small edit.
    One or two tokens that are the whole completion so far must stand in the text exactly once.
    """

    def __init__(self, text: PredictedText, start: int) -> None:
        self.text = text
        self._start = start  # where the completion begins in the history
        self._seen = start
        self._position = 0
        self._lost = False
        self._since = 0  # where in the text the completion was found, if it is not lost
        self._found = EXPECTED

    @property
    def match(self) -> int:
        """Tokens that the completion has in common with the text up to where it stands."""
        return 0 if self._lost else self._found + self._position - self._since

    def next(self, history: History, length: int) -> list[int]:
        """Up to ``length`` tokens that the text has after ``history``, which only grows."""
        tokens, end = self.text.tokens, len(history)
        if not self._lost:
            position, seen = self._position, self._seen
            while seen < end and position < len(tokens) and tokens[position] == history[seen]:
                position += 1
                seen += 1
            self._position = position
            self._lost = seen < end
        if self._lost and self._seen < end:
            self._find_again(history)
        self._seen = end
        if self._lost:
            return []
        return tokens[self._position : self._position + length]

    def _find_again(self, history: History) -> None:
        n = len(history) - self._start
        found = self._anywhere(history, n) if n >= _KEY else self._unique(history[self._start :])
        if found < 0 and n > 1:
            found = self._near(history[-2:])
        if found >= 0:
            self._position = self._since = found
            self._lost = False
            last, tokens = history[-min(n, _LONGEST_MATCH) :], self.text.tokens[:found]
            self._found = 0
            for one, other in zip(reversed(last), reversed(tokens), strict=False):
                if one != other:
                    break
                self._found += 1

    def _anywhere(self, history: History, n: int) -> int:
        """Position after the best match of at least three of the last ``n`` tokens, or -1."""
        ends = self.text.ends.get(history.ngram(len(history) - _KEY, _KEY), [])
        if len(ends) > _MOST_CANDIDATES:
            middle = bisect_left(ends, self._position)
            ends = ends[max(middle - _MOST_CANDIDATES // 2, 0) :][:_MOST_CANDIDATES]
        tokens, last = self.text.tokens, history[-min(n, _LONGEST_MATCH) :]
        best, best_rank = -1, (0, 0)
        for end in ends:
            length, longest = _KEY, min(len(last), end)
            while length < longest and tokens[end - length - 1] == last[-length - 1]:
                length += 1
            rank = (length, -abs(end - self._position))
            if best < 0 or rank >= best_rank:
                best, best_rank = end, rank
        return best

    def _unique(self, last: Sequence[int]) -> int:
        """Position after the only occurrence of ``last``, one or two tokens, or -1."""
        tokens, n = self.text.tokens, len(last)
        found = -1
        for end in range(n, len(tokens) + 1):
            if tokens[end - 1] == last[-1] and tokens[end - n] == last[0]:
                if found >= 0:
                    return -1
                found = end
        return found

    def _near(self, last: Sequence[int]) -> int:
        """Position after the two tokens ``last`` nearest to where the text was left, or -1."""
        tokens, position = self.text.tokens, self._position
        for distance in range(_NEAR + 1):
            for end in (position + distance, position - distance):
                if 2 <= end <= len(tokens) and tokens[end - 2 : end] == last:
                    return end
        return -1
