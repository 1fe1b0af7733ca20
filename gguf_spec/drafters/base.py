"""What every source of drafts has in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from gguf_spec.context import ModelContext, Run
from gguf_spec.history import History
from gguf_spec.sampling import Drawn, Row, Sampler, probability


class Draft(NamedTuple):
    """Tokens that may come next, and who says so. An empty draft is plain decoding.

    ``match`` is of a draft that was copied: how many tokens before it agree, as far as was looked.
    Where the drafter drew by chance of its own, ``drawn`` are the tokens with the distributions
    that it drew them from.
    """

    tokens: Sequence[int]
    source: str
    match: int = 0
    drawn: Sequence[Drawn] = ()


class Draws:
    """A draft in the making: its tokens are chosen one after the other from rows of logits.

    Each is drawn as ``sampler`` says, for its position after ``history`` and with the text to look
    back on, the tokens drafted before it included. One with less probability than ``p_min`` ends
    the draft; and from the second on, one with which the product of their probabilities falls below
    ``floor``. A token that was drawn by chance of the drafter's own does not: that would make it
    depend on what was drawn whether it is tested.
    """

    def __init__(
        self, history: History, sampler: Sampler, p_min: float, floor: float = 0.0
    ) -> None:
        self.tokens: list[int] = []
        self._sampler = sampler
        self._p_min = p_min
        self._floor = floor
        self._survival = 1.0
        self._position = len(history)
        self._recent = history[-sampler.lookback :] if sampler.lookback else []
        self._drawn: list[Drawn] = []
        # Nothing ends the draft early, and nobody wants to know what a token was drawn from.
        self._always = p_min <= 0.0 and floor <= 0.0 and not sampler.own_chance
        self._always = self._always and not sampler.lookback

    def next(self, logits: Row) -> int | None:
        """The next token, drawn from ``logits`` of shape [n_vocab]; None ends the draft."""
        n = len(self.tokens)
        if self._always:
            token = self._sampler.sample(logits, self._position + n)
            self.tokens.append(token)
            return token
        previous = [*self._recent, *self.tokens] if self._recent else self._recent
        drawn = self._sampler.propose(logits, self._position + n, previous, n, self._p_min)
        if drawn is None:
            return None
        if self._floor > 0.0 and drawn.probs is None:
            self._survival *= probability(logits, drawn.token)
            if n and self._survival < self._floor:
                return None
        self.tokens.append(drawn.token)
        if drawn.probs is not None:
            self._drawn.append(drawn)
        return drawn.token

    def draft(self, source: str) -> Draft:
        """What there is."""
        return Draft(self.tokens, source, drawn=self._drawn)


class Drafter(Protocol):
    """A source of drafts for one sequence. It owns its cache and state, and nobody else trims them.

    The sequence's tokens are in the ``History`` that ``begin`` hands over: the last of them has
    been chosen but not decoded by the target. Per round: ``draft``, the target decodes,
    ``observe``, the history grows, ``accept``. A round may go by without ``draft``; then
    ``observe`` and ``accept`` come all the same.
    """

    spec_type: str

    def begin(self, history: History) -> None:
        """A generation starts on ``history``, which the drafter keeps and reads from now on."""

    def observe(self, target: ModelContext, run: Run) -> None:
        """The target has just decoded ``run`` of this sequence, prefill included."""

    def draft(self, limit: int, sampler: Sampler) -> Draft:
        """At most ``limit`` tokens to follow the history.

        ``sampler`` says how to draw them: see ``Draws``. Only what precedes a token may decide
        whether it is drawn, and what was drawn is handed over, to be tested.
        """

    def accept(self, n_accepted: int) -> None:
        """The history has grown by ``n_accepted`` drafted tokens and the target's next one."""

    def close(self) -> None:
        """Give back memory."""


@runtime_checkable
class Unsure(Drafter, Protocol):
    """A drafter that knows how likely its tokens are. ``floor`` is for its next draft: see
    ``Draws``."""

    floor: float


@runtime_checkable
class StatesDrafter(Drafter, Protocol):
    """A drafter on the hidden states of the target, which ``observe`` reads from it.

    ``needs`` are the states (ids as in ``hidden_states``) that the target's context must have
    switched on. They exist for tokens that the target decodes, not for those that it finds in its
    cache; so before it keeps a part of its cache, it asks.
    """

    needs: tuple[int, ...]

    def reusable(self, prompt: Sequence[int], keep: int) -> int:
        """A text ``prompt`` is about to begin, and the target could keep ``keep`` tokens of its
        cache: how many of them it may keep, at most, for the drafter to see all that it misses."""


@runtime_checkable
class Rebuildable(Drafter, Protocol):
    """A drafter with a context that can be made anew in the middle of a generation."""

    def rebuild(self) -> None:
        """Throw away what the drafter has cached of the history, and begin again with what can
        still be had without a decode of the target. Called between ``accept`` and ``draft``."""


class Absent:
    """In place of a drafter that failed: it offers nothing."""

    def __init__(self, spec_type: str) -> None:
        self.spec_type = spec_type

    def begin(self, history: History) -> None:
        """Nothing to begin."""

    def observe(self, target: ModelContext, run: Run) -> None:
        """Nothing to see."""

    def draft(self, limit: int, sampler: Sampler) -> Draft:
        """No tokens."""
        return Draft((), self.spec_type)

    def accept(self, n_accepted: int) -> None:
        """Nothing to accept."""

    def close(self) -> None:
        """Nothing to close."""
