"""The reasoning of one model: how to see it in tokens, and how to limit it.

A limit of N tokens forces the end mark when they are used up, and the answer begins. The limit is a
mask, as a grammar is one: what may come next is a function of the tokens that stand. So it holds
for the target's choice, for drafts, which are cut where it forbids them, and for the audit alike,
and the text does not depend on whether anything was drafted.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gguf_spec.errors import RunError
from gguf_spec.prompt import Vocabulary
from gguf_spec.reasoning import ReasoningFormat, Splitter
from gguf_spec.sampling import Mask
from gguf_spec.sampling.noise import Ids

Piece = Callable[[int], bytes]
# No template writes more tokens than this between the start of an answer and its reasoning.
_TAIL = 64


class Tokens(Vocabulary, Protocol):
    """What is asked of a model."""

    def piece(self, token: int) -> bytes: ...


class Thinking:
    """How a model with the chat template ``template`` reasons; ``format`` is None if it does not.

    ``piece`` gives the bytes of a token as a text has them: the marks of the reasoning are written
    out where they are control tokens, which otherwise stand for nothing.
    """

    def __init__(self, template: str | None, model: Tokens) -> None:
        self.format = ReasoningFormat.of(template)
        self._model = model
        self._marks: dict[int, bytes] = {}
        for mark in self.format.marks if self.format else ():
            tokens = model.tokenize(mark, parse_special=True)
            if len(tokens) == 1 and model.is_control(tokens[0]):
                self._marks[tokens[0]] = mark.encode()
        self.piece: Piece = self._marked_piece if self._marks else model.piece

    def splitter(self, prompt: Sequence[int]) -> Splitter | None:
        """A splitter for the answer to ``prompt``; None where there is nothing to split."""
        return None if self.format is None else self.format.splitter(self._tail(prompt))

    def limited(self, prompt: Sequence[int], budget: int, inner: Mask | None) -> Mask | None:
        """The mask ``inner`` with a limit on the reasoning of the answer to ``prompt``; a budget
        below 0 is none."""
        splitter = self.splitter(prompt)
        if splitter is None or self.format is None or budget < 0:
            return inner
        ending = self._model.tokenize(self.format.end, parse_special=True)
        return BudgetMask(splitter, budget, ending, self.piece, inner)

    def _marked_piece(self, token: int) -> bytes:
        return self._marks.get(token) or self._model.piece(token)

    def _tail(self, prompt: Sequence[int]) -> str:
        """The end of ``prompt`` that the template has written: what a message says about tags is
        before the control token that begins the answer."""
        model, texts = self._model, []
        for token in reversed(prompt[-_TAIL:]):
            if model.is_control(token) and token not in self._marks:
                break
            texts.append(model.special_text(token))
        return "".join(reversed(texts))


class BudgetMask:
    """Forces ``ending`` (tokens) when ``budget`` tokens of reasoning stand.

    A token counts if the text stood in its reasoning before it. A character whose bytes are spread
    over tokens is completed first. ``piece`` gives the bytes of a token, marks written out;
    ``inner`` is what a grammar allows besides: it has to allow the end mark, as one does that
    begins behind it.
    """

    def __init__(
        self,
        splitter: Splitter,
        budget: int,
        ending: Sequence[int],
        piece: Piece,
        inner: Mask | None = None,
    ) -> None:
        self._splitter = splitter
        self._left = budget
        self._ending = tuple(ending)
        self._piece = piece
        self._inner = inner
        self._forced = 0
        """Tokens of the ending that have come since the budget was used up."""
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    @property
    def _next(self) -> int | None:
        """The token that has to come; None: any may."""
        if self._forced:
            return self._ending[self._forced] if self._forced < len(self._ending) else None
        incomplete = bool(self._decoder.getstate()[0])
        if self._splitter.inside and self._left <= 0 and not incomplete:
            return self._ending[0]
        return None

    def legal(self, ids: Ids) -> NDArray[np.bool_]:
        """Which of the tokens ``ids`` may come next; shape like ``ids``."""
        forced = self._next
        if forced is not None:
            return np.asarray(ids == forced)
        if self._inner is not None:
            return self._inner.legal(ids)
        return np.ones(len(ids), dtype=np.bool_)

    def advance(self, token: int) -> None:
        """``token`` has come.

        Raises:
            RunError: it may not; nothing has changed.
        """
        forced = self._next
        if forced is not None and token != forced:
            raise RunError(f"token {token} may not come: the reasoning has to end with {forced}")
        if self._inner is not None:
            self._inner.advance(token)
        if self._forced or forced is not None:
            self._forced = (self._forced + 1) % len(self._ending)
        if self._splitter.inside:
            self._left -= 1
        self._splitter.feed(self._decoder.decode(self._piece(token)))

    def copy(self) -> BudgetMask:
        """One of its own in the same state."""
        inner = None if self._inner is None else self._inner.copy()
        twin = BudgetMask(self._splitter.copy(), self._left, self._ending, self._piece, inner)
        twin._forced = self._forced
        twin._decoder.setstate(self._decoder.getstate())
        return twin
