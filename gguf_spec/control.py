"""How much to draft, and from which source, round by round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Choice(NamedTuple):
    """Ask drafter number ``drafter`` for ``n_min`` to ``n_max`` tokens; fewer are not worth it."""

    drafter: int
    n_max: int
    n_min: int = 1


class Round(NamedTuple):
    """What came of one target decode after prefill. Times in seconds; ``draft_seconds`` is what all
    drafters took in this round, to draft and to read what the target had decoded."""

    drafter: int | None
    n_drafted: int
    n_accepted: int
    draft_seconds: float
    decode_seconds: float


class Controller(Protocol):
    """Decides before each round, and learns from what came of it."""

    def choose(self, limit: int) -> Sequence[Choice]:
        """Drafters to ask, in order; the first that offers a draft wins. None: decode plainly.

        ``limit`` is what context, token budget and batch leave room for, at least 1.
        """

    def record(self, result: Round) -> None:
        """Learn from a round."""

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

    def record(self, result: Round) -> None:
        """A fixed policy learns nothing."""

    def drop(self, drafter: int) -> None:
        """Ask the others only."""
        self._dropped.add(drafter)
