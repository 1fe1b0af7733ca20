"""Drafts from a smaller model of the same vocabulary."""

from __future__ import annotations

from gguf_spec.context import ModelContext, Run
from gguf_spec.drafters.base import Draft, Draws
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
        self._context = context
        self._seq = seq
        self._p_min = p_min
        self._history = History()
        self._cached: list[int] = []  # the tokens in our sequence of the draft context
        self._checkpoint: tuple[int, object] | None = None
        context.clear(seq)

    def begin(self, history: History) -> None:
        """Keep what the cache shares with ``history``."""
        self._history = history
        self._rewind(0)

    def observe(self, target: ModelContext, run: Run) -> None:
        """A draft model has no use for the target's states."""

    def draft(self, limit: int, sampler: Sampler) -> Draft:
        """See the class."""
        position = len(self._history)
        # The last drafted token is not decoded, so the draft may go one past the draft context.
        limit = min(limit, self._context.n_ctx + 1 - position)
        draws = Draws(self._history, sampler, self._p_min)
        if limit > 0:
            try:
                self._continue(draws, limit)
            except BaseException:
                self._clear()
                raise
        return draws.draft(self.spec_type)

    def accept(self, n_accepted: int) -> None:
        """Drop what was drafted and not accepted."""
        self._rewind(max(len(self._history) - n_accepted - 1, 0))

    def close(self) -> None:
        """Nothing to give back: the context belongs to whoever made it."""
        self._clear()

    def _continue(self, draws: Draws, limit: int) -> None:
        context = self._context
        row = self._catch_up()
        if not context.removes_tail:
            self._checkpoint = (len(self._cached), context.save(self._seq))
        while True:
            token = draws.next(context.logits(row))
            if token is None or len(draws.tokens) == limit or context.is_end(token):
                return
            row = self._decode([token], 1)

    def _catch_up(self) -> int:
        """Decode what the cache lacks of the history; the batch row of its last token."""
        row = 0
        length = len(self._history)
        while len(self._cached) < length:
            start = len(self._cached)
            end = min(start + self._context.n_ubatch, length)
            row = self._decode(self._history[start:end], int(end == length))
        return row

    def _decode(self, tokens: list[int], n_outputs: int) -> int:
        """Append ``tokens`` to the cache; the batch row of the last one."""
        run = Run(self._seq, len(self._cached), tokens, n_outputs)
        self._context.decode([run])
        self._cached += tokens
        return run.row + len(tokens) - 1

    def _rewind(self, agreed: int) -> None:
        """Drop the cached tokens that are not the history's; the first ``agreed`` are known to be.

        The history's last token stays out: its logits are needed again.
        """
        cached, history = self._cached, self._history
        keep = min(agreed, len(cached))
        end = min(len(cached), len(history) - 1)
        while keep < end and cached[keep] == history[keep]:
            keep += 1
        keep = min(keep, max(end, 0))
        if keep == len(cached):
            return
        if self._context.remove(self._seq, keep):
            del cached[keep:]
        elif self._checkpoint and self._checkpoint[0] <= keep:
            length, state = self._checkpoint
            self._context.restore(self._seq, state)
            del cached[length:]
        else:
            self._clear()

    def _clear(self) -> None:
        self._context.clear(self._seq)
        self._cached.clear()
        self._checkpoint = None
