"""What the engine asks of a controller, and the one that never changes its mind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

MOST_SECONDS = 1e6  # twelve days: no round takes that long


class Choice(NamedTuple):
    """Ask drafter number ``drafter`` for ``n_min`` to ``n_max`` tokens; fewer are not worth it.

    ``floor`` ends a draft early: where the product of the probabilities that the drafter gives its
    own tokens falls below it, a further token is not worth its cost.
    """

    drafter: int
    n_max: int
    n_min: int = 1
    floor: float = 0.0


class Offer(NamedTuple):
    """A draft that was made: the tokens, and for n-grams how many tokens before it agree with the
    place that it was copied from."""

    drafter: int
    tokens: Sequence[int]
    match: int = 0


class Round(NamedTuple):
    """What came of one target decode after prefill. Times in seconds.

    ``tokens`` are those that the round added to the text: the accepted ones and the target's own.
    ``depth`` is the number of tokens in the cache before it. ``draft_seconds`` is all the time that
    drafters took for this round, whether they were asked or only kept up. ``rollback_seconds`` are
    those of the round before: for a checkpoint, and for going back to it.
    """

    drafter: int | None
    n_drafted: int
    n_accepted: int
    draft_seconds: float
    decode_seconds: float
    tokens: Sequence[int] = ()
    depth: int = 0
    rollback_seconds: float = 0.0


def possible_seconds(seconds: float) -> float:
    """The nearest time that a round may take: clocks go back, stand still and leap, where a machine
    was asleep or is a virtual one that was moved."""
    return min(seconds, MOST_SECONDS) if seconds > 0.0 else 0.0


def told_by_a_clock(result: Round) -> Round:
    """``result`` with times that are possible."""
    most = MOST_SECONDS
    if (
        0.0 <= result.decode_seconds <= most
        and 0.0 <= result.draft_seconds <= most
        and 0.0 <= result.rollback_seconds <= most
    ):
        return result
    return result._replace(
        decode_seconds=possible_seconds(result.decode_seconds),
        draft_seconds=possible_seconds(result.draft_seconds),
        rollback_seconds=possible_seconds(result.rollback_seconds),
    )


class Controller(Protocol):
    """Decides before each round, and learns from what came of it."""

    def choose(self, limit: int) -> Sequence[Choice]:
        """Drafters to ask, in order; the first that offers a draft which ``judge`` wants wins.
        None: decode plainly.

        ``limit`` is what context, token budget and batch leave room for, at least 1.
        """

    def judge(self, choice: Choice, offer: Offer) -> int:
        """How many tokens of an ``offer`` to verify; 0: none, ask the next drafter."""

    def record(self, result: Round) -> None:
        """Learn from a round."""

    def resting(self, n_prompt: int, n_new: int) -> frozenset[int]:
        """A text begins with a prompt of ``n_prompt`` tokens, of which the target has to read
        ``n_new``: drafters that take no part in it, and are not asked either."""

    def prefilled(self, drafter: int, n_tokens: int, seconds: float) -> None:
        """While the target read ``n_tokens`` of the prompt, following it took this drafter so many
        ``seconds``."""

    def drop(self, drafter: int) -> None:
        """Drafter number ``drafter`` has failed and offers nothing any more: do not count on it.
        The others keep their numbers. The round in progress, which may be its own, is recorded."""


class FixedPolicy:
    """Always ask every drafter in order, each up to its ceiling.

    ``floors`` are the shortest drafts worth verifying, one per drafter; by default 1.
    """

    def __init__(self, ceilings: Sequence[int], floors: Sequence[int] = ()) -> None:
        self._ceilings = tuple(ceilings)
        self._floors = tuple(max(floor, 1) for floor in floors) or (1,) * len(self._ceilings)
        self._dropped: set[int] = set()

    def choose(self, limit: int) -> Sequence[Choice]:
        """All drafters, in order."""
        return [
            Choice(i, min(limit, ceiling), floor)
            for i, (ceiling, floor) in enumerate(zip(self._ceilings, self._floors, strict=True))
            if i not in self._dropped
        ]

    def judge(self, choice: Choice, offer: Offer) -> int:
        """All of it, if it is long enough."""
        n = len(offer.tokens)
        return n if n >= choice.n_min else 0

    def record(self, result: Round) -> None:
        """A fixed policy learns nothing."""

    def resting(self, n_prompt: int, n_new: int) -> frozenset[int]:
        """All take part."""
        return frozenset()

    def prefilled(self, drafter: int, n_tokens: int, seconds: float) -> None:
        """Nor of the prompt."""

    def drop(self, drafter: int) -> None:
        """Ask the others only."""
        self._dropped.add(drafter)
