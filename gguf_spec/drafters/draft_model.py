"""Drafts from a smaller model of the same vocabulary."""

from __future__ import annotations

from gguf_spec.context import ModelContext, Run
from gguf_spec.drafters.base import Draft, Draws
from gguf_spec.drafters.draft_cache import DraftCache
from gguf_spec.history import History
from gguf_spec.sampling import Sampler


class DraftModel:
    """``draft-simple``: a second, smaller model continues the text.

    It chooses its tokens as its sampler says, see ``Draws``. A choice whose probability (softmax
    over the vocabulary at temperature 1) is below ``p_min`` ends the draft.

    The draft model reads nothing until it is asked: tokens that it has not seen are decoded at the
    next ``draft``. While drafting is paused, and during rounds that another drafter won, it costs
    nothing.
    """

    spec_type = "draft-simple"

    def __init__(self, context: ModelContext, seq: int = 0, *, p_min: float = 0.0) -> None:
        self.context = context
        self._cache = DraftCache(context, seq)
        self._p_min = p_min
        self.floor = 0.0
        self._history = History()

    def begin(self, history: History) -> None:
        """Keep what the cache shares with ``history``."""
        self._history = history
        self._cache.rewind(history, 0)

    def observe(self, target: ModelContext, run: Run) -> None:
        """A draft model has no use for the target's states."""

    def draft(self, limit: int, sampler: Sampler) -> Draft:
        """See the class."""
        position = len(self._history)
        # The last drafted token is not decoded, so the draft may go one past the draft context.
        limit = min(limit, self.context.n_ctx + 1 - position)
        draws = Draws(self._history, sampler, self._p_min, self.floor)
        if limit > 0:
            try:
                self._continue(draws, limit)
            except BaseException:
                self._clear()
                raise
        return draws.draft(self.spec_type)

    def accept(self, n_accepted: int) -> None:
        """Drop what was drafted and not accepted."""
        self._cache.rewind(self._history, max(len(self._history) - n_accepted - 1, 0))

    def rebuild(self) -> None:
        """Begin with an empty cache: the next draft decodes the whole text again."""
        self._clear()

    def close(self) -> None:
        """Nothing to give back: the context belongs to whoever made it."""
        self._clear()

    def _continue(self, draws: Draws, limit: int) -> None:
        context = self.context
        row = self._cache.catch_up(self._history)
        self._cache.save()
        while True:
            token = draws.next(context.logits(row))
            if token is None or len(draws.tokens) == limit or context.is_end(token):
                return
            row = self._cache.decode([token], 1)

    def _clear(self) -> None:
        self._cache.clear()
