"""When a drafter that used to be right is never right any more: a sign that its context is wrong.

A draft cannot change the text, so a damaged context shows in one way only: nothing is accepted.
Building the context anew mends that, and costs time; where the text has become hard to foresee, the
time is lost. So the rule wants evidence that the text alone hardly gives.
"""

from __future__ import annotations

DROUGHT = 32
"""Drafts in a row of which no token stood. A passage that lets one draft in five stand looks like
that once in 1,200 stretches (0.8 ** 32), one that lets a third stand once in 400,000."""
WINDOW = 32
"""Drafts before those that tell how good the drafter was."""
GOOD = 11
"""How many of these must have stood, at least in part: a third. Of less there is little to mend."""

_BITS = (1 << (DROUGHT + WINDOW)) - 1


class Recovery:
    """Watches the drafts of one drafter during one generation, and asks for a rebuild once."""

    __slots__ = ("_asked", "_drought", "_stood")

    def __init__(self) -> None:
        self._stood = 0  # a bit for each of the latest drafts, the newest lowest: did it stand?
        self._drought = 0
        self._asked = False

    def observe(self, n_accepted: int) -> bool:
        """Of one more draft ``n_accepted`` tokens stood. Whether to rebuild the context now."""
        stood = n_accepted > 0
        self._stood = (self._stood << 1 | stood) & _BITS
        self._drought = 0 if stood else self._drought + 1
        if self._drought != DROUGHT or self._asked:
            return False
        self._asked = (self._stood >> DROUGHT).bit_count() >= GOOD
        return self._asked
