"""How likely drafted tokens stand, learned from what became of earlier ones.

For n-grams the chance depends on how much text agrees before the drafted token: an accidental match
of three tokens is wrong more often than not, one of thirty hardly ever. A drafted token that stands
makes the match longer by one, so one table by length of match gives a draft's whole chance. And it
is learned without verifying anything: what the target says next judges a draft that nobody ran.

For models and heads the chance depends on the position in the draft.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence

#: The least match of each class.
_CLASSES = (0, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48)
#: The chance in each class before anything is known.
_PRIORS = (0.2, 0.35, 0.5, 0.6, 0.65, 0.75, 0.82, 0.9, 0.94, 0.96, 0.97, 0.98)
_PRIOR_WEIGHT = 5.0  # observations that a prior stands for
_POSITION_WEIGHT = 3.0  # and what is known of the position before
_MEMORY = 0.98  # what an observation weighs after the next one
_LONGEST = len(_CLASSES) - 1
_CLASS_OF = tuple(bisect_right(_CLASSES, match) - 1 for match in range(65))
#: How much of the shift is a class's: a long match is a copy in any text.
_SHARES = (1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.8, 0.6, 0.4, 0.2, 0.2, 0.2)
_SHIFT_RATE = 0.3
_KEEP_SHIFT = 0.98
_MOST_SHIFT = 1.5
_LEAST = 1e-3  # chances below are not told apart


class Chance:
    """What a probability was learned from: ``hits`` of ``tests``, older ones weighing less."""

    __slots__ = ("hits", "tests")

    def __init__(self, prior: float, weight: float) -> None:
        self.hits = prior * weight
        self.tests = weight

    def observe(self, stood: bool) -> None:
        """One more."""
        self.hits = self.hits * _MEMORY + stood
        self.tests = self.tests * _MEMORY + 1.0

    def doubt(self, weight: float) -> None:
        """Let what was learned count for no more than ``weight`` observations."""
        if self.tests > weight:
            self.hits *= weight / self.tests
            self.tests = weight


class MatchChances:
    """Of an n-gram drafter: the chance of the next token, by the length of the match before it.

    Where a text is copied all matches are better than elsewhere, short ones too. So what became of
    drafts says something of their class, and by ``shift``, which follows quickly, of all classes.
    ``hot``: the target draws by chance, so that what came before comes less often again.
    """

    def __init__(self, *, hot: bool = False) -> None:
        priors = [prior * prior for prior in _PRIORS] if hot else _PRIORS
        self._chances = [Chance(prior, _PRIOR_WEIGHT) for prior in priors]
        self._shift = 0.0  # in log-odds
        self._means: list[float | None] = [None] * len(_CLASSES)

    @property
    def means(self) -> list[float]:
        """The chances, by class."""
        return [self._mean(which) for which in range(len(_CLASSES))]

    def of(self, match: int) -> float:
        """The chance that the token after ``match`` agreeing ones stands."""
        return self._mean(_CLASS_OF[match] if match < 65 else _LONGEST)

    def _mean(self, which: int) -> float:
        known = self._means[which]
        if known is None:
            chance = self._chances[which]
            odds = chance.hits / max(chance.tests - chance.hits, _LEAST)
            odds *= math.exp(_SHARES[which] * self._shift)
            known = self._means[which] = odds / (1.0 + odds)
        return known

    def observe(self, match: int, stood: bool) -> None:
        """A token after ``match`` agreeing ones stood, or did not."""
        which = _CLASS_OF[match] if match < 65 else _LONGEST
        surprise = _SHARES[which] * (stood - self._mean(which))
        shift = _KEEP_SHIFT * self._shift + _SHIFT_RATE * surprise
        self._shift = min(max(shift, -_MOST_SHIFT), _MOST_SHIFT)
        self._chances[which].observe(stood)
        self._means = [None] * len(_CLASSES)

    def expected(self, match: int, lengths: Sequence[int]) -> list[float]:
        """The tokens that drafts of these lengths (ascending) are expected to yield after
        ``match`` agreeing ones, the target's own token included."""
        result = []
        total, survival, done = 1.0, 1.0, 0
        for length in lengths:
            while done < length and survival > _LEAST:
                survival *= self.of(match + done)
                total += survival
                done += 1
            result.append(total)
        return result


class PositionChances:
    """Of a model or head: the chance of each drafted token, given that those before it stand.

    What is not known of a position is taken to be as at the one before it.
    """

    def __init__(self, longest: int, prior: float = 0.6) -> None:
        self._prior = prior
        self._chances = [Chance(prior, 0.0) for _ in range(max(longest, 1))]
        self._means: list[float] | None = None

    @property
    def means(self) -> list[float]:
        """The chances, by position."""
        if self._means is None:
            self._means = []
            mean = self._prior
            for chance in self._chances:
                mean = (chance.hits + _POSITION_WEIGHT * mean) / (chance.tests + _POSITION_WEIGHT)
                self._means.append(mean)
        return self._means

    def observe(self, n_drafted: int, n_accepted: int) -> None:
        """A draft came out."""
        self._means = None
        for chance in self._chances[:n_accepted]:
            chance.observe(True)
        if n_accepted < n_drafted and n_accepted < len(self._chances):
            self._chances[n_accepted].observe(False)

    def expected(self, lengths: Sequence[int]) -> list[float]:
        """As ``MatchChances.expected``."""
        means, result = self.means, []
        total, survival, done = 1.0, 1.0, 0
        for length in lengths:
            for mean in means[done:length]:
                survival *= mean
                total += survival
            done = length
            result.append(total)
        return result

    def doubt(self, weight: float) -> None:
        """The text has gone on without drafts: what was learned may have changed."""
        self._means = None
        for chance in self._chances:
            chance.doubt(weight)
