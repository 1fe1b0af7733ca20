"""Drafts from the place whose text before it agrees longest: for a controller that judges them."""

from __future__ import annotations

from gguf_spec.drafters.ngram_base import MAX_INDEXED, NgramDrafter, NgramIndex
from gguf_spec.drafters.pool import LONGEST_MATCH, Pool
from gguf_spec.history import History

_PLACES = 8  # latest occurrences that are compared
_LEAST_BEFORE = 16  # tokens that agree before one that differs, for them to count
_MOST_EXTRA = 5  # and what they count for at most
_WORTH = ((4, 16), (3, 8), (2, 7))  # matches that so many places are worth which go on alike
_LEAST_BEGINNING = 3  # tokens of an answer that are its beginning,
_MOST_BEFORE = 2  # with so many before it at most, or it is how all answers of this chat begin
_BEGINNING = 8  # what they count for beside themselves
_SURE = 16  # with so many tokens in common, the place of the last draft is as good as any
_LEAST_LENGTH = 8  # of a draft, if there are as many tokens,
_TIMES = 4  # and so many times its match: what comes behind hardly ever stands


class LongestMatch(NgramDrafter):
    """``ngram-simple`` as ``auto`` uses it: a short key, the best of its latest places, and a draft
    whenever there is one. How much of it is verified, a controller decides by ``Draft.match``.

    Long keys make drafts that are mostly right but come late, and not at all after a small edit.
    With a short key and no judge, on the other hand, prose is slowed down by chance repetitions.
    ``Draft.match`` counts hits, too: see ``_weighed``.

    Where the place is so near to the end that the text repeats itself, the draft repeats it on.
    Predicted text, history and pool compete by their match.
    """

    spec_type = "ngram-simple"

    def __init__(
        self,
        size_n: int = 2,
        size_m: int = 47,
        pool: Pool | None = None,
        *,
        max_indexed: int = MAX_INDEXED,
    ) -> None:
        self.size_n = size_n
        self.size_m = size_m
        self._index = NgramIndex(size_n)
        self._place = -1
        """Where the next token would be copied from."""
        self._seen = 0
        self._matched = 0
        super().__init__(size_m, pool, max_indexed=max_indexed, trusting=False)
        self._reset(0)

    def _best(self, limit: int) -> list[int]:
        best, match, pool = self._find(limit), self._match, self._pool
        if pool is None or match >= LONGEST_MATCH:
            return best
        for tokens, own in (self._predicted(pool), self._find_in_pool(pool)):
            if tokens and own >= match:
                best, match = tokens, own
        self._match = match
        return best[: _hopeful(match)]

    def _predicted(self, pool: Pool) -> tuple[list[int], int]:
        return self._follow(pool), self._match

    def _find(self, limit: int) -> list[int]:
        history = self._history
        place = self._place_in(history)
        if place < 0:
            return []
        m = min(limit, self.size_m, _hopeful(self._match))
        tokens = history[place : place + m]
        period = len(tokens)
        while len(tokens) < m:
            tokens += tokens[: min(period, m - len(tokens))]
        return tokens

    def _place_in(self, history: History) -> int:
        """Where to copy from, -1 for nowhere; sets ``_match``, and ``_matched``: the same without
        regard to hits."""
        n, length = self.size_n, len(history)
        if self._place >= 0:
            new = length - self._seen
            if history[self._place : self._place + new] == history[self._seen :]:
                self._place += new
                self._seen = length
                self._match = min(self._matched + new, LONGEST_MATCH)
                self._matched = self._match
                if self._match >= _SURE:
                    return self._place
        self._index.extend(history, length - n)
        place, self._place, self._matched = self._place, -1, 0
        seen, self._seen = self._seen, length
        if length < n:
            return -1
        if place >= 0:  # a token was another one there: perhaps it goes on behind it
            place += length - seen
            match = self._agreement(place) if place < length else 0
            if match:
                self._place, self._matched = place, match
        start = self._index.find(history, history[length - n :])
        nexts: list[int] = []
        for _ in range(_PLACES):
            if start < 0:
                break
            nexts.append(history[start + n])
            match = self._agreement(start + n)
            if match > self._matched:
                self._place, self._matched = start + n, match
                if match == LONGEST_MATCH:
                    break
            start = self._index.before(start)
        self._match = self._weighed(nexts) if self._place >= 0 else 0
        return self._place

    def _weighed(self, nexts: list[int]) -> int:
        """The match, weighed by hits: ``nexts`` is what the latest places go on with. Where some
        go on alike, and none otherwise, a short match is as good as a long one; where most go on
        otherwise it is worth half. (Of matches of two to five tokens in recorded texts, a single
        place was right in 59 %, two or three that agree in 87 %, four in all, a minority in 32 %.)

        An answer that is a passage of the prompt from its first token on is most likely a copy: of
        18 answers of SmolLM2 to 72 prompts that began with three tokens or more of one, 13 went on
        for more than a dozen.
        """
        match = self._matched
        n_answer = len(self._history) - self._n_prompt
        if match >= _LEAST_BEGINNING and n_answer <= match <= n_answer + _MOST_BEFORE:
            return match + _BEGINNING
        alike = nexts.count(self._history[self._place])
        others = len(nexts) - alike
        if others:
            return match // 2 if alike <= others else match
        return next((max(match, worth) for hits, worth in _WORTH if alike >= hits), match)

    def _agreement(self, place: int) -> int:
        """The match of ``place``. A single token that differs, with a long match before it, makes
        it shorter and does not end it: so do edits."""
        history, end = self._history, len(self._history)
        match = history.agreement(place, end, LONGEST_MATCH)
        if match < _SURE and min(place, end) > match:
            before = history.agreement(place - match - 1, end - match - 1, 4 * _MOST_EXTRA)
            if before >= _LEAST_BEFORE:
                match += min(before // 4, _MOST_EXTRA)
        return match

    def _find_in_pool(self, pool: Pool) -> tuple[list[int], int]:
        if len(self._history) < self.size_n:
            return [], 0
        return pool.longest(self._history, self.size_n, self.size_m, _PLACES)

    def _reset(self, base: int) -> None:
        self._index.clear(base)
        self._place, self._seen, self._matched = -1, 0, 0


def _hopeful(match: int) -> int:
    """How many tokens of a draft there is hope for."""
    return max(_LEAST_LENGTH, _TIMES * match)
