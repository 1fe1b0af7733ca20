"""What a token is drawn from: the tokens that may come, with their probabilities."""

from __future__ import annotations

from typing import NamedTuple

from gguf_spec.sampling.noise import Ids, Scores


class Distribution(NamedTuple):
    """Tokens that filters have left: ``ids`` ascending, ``probs`` in float64, positive, sum 1.

    All other tokens of the vocabulary have probability 0 and are not stored, so what is done with
    it costs as much as there are candidates.
    """

    ids: Ids
    probs: Scores

    def of(self, token: int) -> float:
        """Probability of ``token``, which may be any integer."""
        ids = self.ids
        at = int(ids.searchsorted(token))
        return float(self.probs[at]) if at < len(ids) and ids[at] == token else 0.0

    def drawn(self, uniform: float) -> int:
        """The token that a number in (0, 1) draws."""
        at = int(self.probs.cumsum().searchsorted(uniform, side="right"))
        return int(self.ids[min(at, len(self.ids) - 1)])  # the sum may be a little less than 1


class Drawn(NamedTuple):
    """A token that a drafter has drawn, and what it was drawn from.

    ``probs`` is None where nothing was left to chance, or where the chance is the target's own: the
    token is then a function of what precedes it and of the seed.
    """

    token: int
    probs: Distribution | None
