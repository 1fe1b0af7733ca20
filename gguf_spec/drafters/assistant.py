"""Drafts from a Gemma 4 assistant: a few layers that attend to the target's own cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from gguf_spec.context import ModelContext, NoSlotError, Run, StatesContext
from gguf_spec.drafters.base import Draft, Draws
from gguf_spec.drafters.hidden import HeadContext, RowBuffer, Rows
from gguf_spec.hidden_states import NEXTN
from gguf_spec.history import History
from gguf_spec.sampling import Sampler


class Assistant:
    """``draft-mtp`` with an assistant, which has no cache of its own.

    It takes the newest token and the target's state before it, at the position of the newest token,
    and looks at the keys and values that the target's last layers keep for all tokens before. The
    next step takes the drafted token and the assistant's own state, at the same position: there
    are no keys of drafted tokens to look at (``is_mem_shared`` in
    ``common_speculative_impl_draft_mtp``, llama.cpp's common/speculative.cpp).

    So nothing is caught up with and nothing is rolled back, and a cached prompt is as good as one
    that was decoded: the state that is needed is that of the last token, which always is.
    """

    spec_type = "draft-mtp"
    needs = (NEXTN,)

    def __init__(self, context: HeadContext, seq: int = 0, *, p_min: float = 0.0) -> None:
        self._context = context
        self._seq = seq
        self._p_min = p_min
        self.floor = 0.0
        self._history = History()
        self._rows = RowBuffer()

    def reusable(self, prompt: Sequence[int], keep: int) -> int:
        """All of it: see the class."""
        del prompt
        return keep

    def begin(self, history: History) -> None:
        """The state that the first draft needs is still to come."""
        self._history = history
        self._rows.cut(0)

    def observe(self, target: ModelContext, run: Run) -> None:
        """Keep the target's states of the rows that a draft may start from."""
        n = run.n_outputs
        if n:
            skipped = len(run.tokens) - n
            states = cast(StatesContext, target).states(self.needs, run.row + skipped, n)
            self._rows.put(run.start + skipped, states)

    def draft(self, limit: int, sampler: Sampler) -> Draft:
        """See ``Drafter``."""
        draws = Draws(self._history, sampler, self._p_min, self.floor)
        position = len(self._history) - 1
        rows = self._rows
        if limit > 0 and rows.start < position == rows.end and position < self._context.n_ctx:
            try:
                self._continue(draws, rows.get(position - 1, position), limit)
            except NoSlotError:  # the target's cache is full
                return Draft((), self.spec_type)
        return draws.draft(self.spec_type)

    def accept(self, n_accepted: int) -> None:
        """Forget the states of rejected tokens."""
        del n_accepted  # the history says the same
        decoded = len(self._history) - 1
        self._rows.cut(decoded)
        self._rows.drop(decoded - 1)

    def close(self) -> None:
        """Nothing to give back: the context belongs to whoever made it."""
        self._rows = RowBuffer()

    def _continue(self, draws: Draws, state: Rows, limit: int) -> None:
        context, history = self._context, self._history
        position = len(history) - 1
        context.decode_states(Run(self._seq, position, [history[-1]], 1), state)
        context.draft_on(self._seq, position, limit, draws.next, stride=0)
