"""Drafts from a chain of MTP heads: each was trained for one token further ahead."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from gguf_spec.context import Run
from gguf_spec.drafters.base import Draws
from gguf_spec.drafters.hidden import HeadContext, HeadDrafter, Rows
from gguf_spec.hidden_states import NEXTN


class ChainContext(HeadContext, Protocol):
    """The context of several heads, which share the positions of one cache, not what is in it."""

    def decode_states(
        self, run: Run, states: Rows, *, with_tokens: bool = True, head: int | None = None
    ) -> None:
        """As in ``HeadContext``, with ``head``, which computes the rows that have outputs only."""


class MtpChain(HeadDrafter):
    """``draft-mtp`` with ``n_heads`` heads: head k drafts the k-th token, counted from 0.

    Head k reads the pairs of the text with the states of the target, as every head does, and then
    the tokens drafted so far: the one that head i drafted with the state that head i-1 ended in.
    So a draft has as many tokens as there are heads (``chain_heads`` in
    ``common_speculative_impl_draft_mtp``, llama.cpp's common/speculative.cpp).

    Each head has a layer of its own, and so keys and values of its own, while the cells of the
    cache and their positions belong to all. Before a head decodes what it has not seen, the
    positions from there on are given back and taken again: they come to lie in the same cells, so
    nothing that other heads keep there is touched. That holds for a cache in which no position
    takes the cell of another, hence ``swa_full`` (see ``chain_params``). llama.cpp lets every head
    read every row of the target at once; here a head reads when it is asked, rejected rows never.
    """

    spec_type = "draft-mtp"
    shift = 0

    def __init__(
        self, context: ChainContext, n_heads: int, seq: int = 0, *, p_min: float = 0.0
    ) -> None:
        super().__init__(context, (NEXTN,), seq, p_min=p_min)
        self._heads = context
        self._seen = [0] * n_heads
        """Pairs that each head has read. ``_n_pairs`` is the least of them."""

    @property
    def n_positions(self) -> int:
        """Positions that the cache holds between two drafts."""
        return max(self._seen)

    def _continue(self, draws: Draws, last: int, limit: int) -> None:
        context, history, tokens = self._heads, self._history, draws.tokens
        drafted: list[Rows] = []
        for head in range(min(limit, len(self._seen))):
            self._catch_up(head, last)
            states = np.concatenate([self._states(last, last + 1), *drafted])
            run = Run(self._seq, last, [history[last], *tokens], 1)
            context.decode_states(run, states, head=head)
            self._seen[head] = last + 1
            row = len(tokens)
            token = draws.next(context.logits(row))
            if token is None:
                break
            drafted.append(context.own_state(row).reshape(1, -1).copy())
            if context.is_end(token):
                break
        self._note_seen()
        context.remove(self._seq, last + 1)
        self._rows.drop(self._n_pairs - 1)

    def _catch_up(self, head: int, end: int) -> None:
        """Let ``head`` read pairs up to ``end``, exclusive, and nothing behind them be cached."""
        context, start = self._heads, self._seen[head]
        context.remove(self._seq, min(start, end))
        while start < end:
            n = min(end - start, context.n_ubatch)
            run = Run(self._seq, start, self._history[start : start + n], 0)
            context.decode_states(run, self._states(start, start + n), head=head)
            self._seen[head] = start = start + n

    def _decode(self, end: int, *, outputs: bool = False) -> Rows:
        """Let all heads read pairs up to ``end``, exclusive: what waits is a batch."""
        assert not outputs
        for head in range(len(self._seen)):
            if self._seen[head] < end:
                self._catch_up(head, end)
        self._note_seen()
        return self._states(end, end)

    def _note_seen(self) -> None:
        self._n_pairs = min(self._seen)

    def _keep_pairs(self, n: int) -> None:
        if n < self.n_positions:
            if not self._context.remove(self._seq, n):
                self._context.clear(self._seq)
                n = 0
            self._seen = [min(seen, n) for seen in self._seen]
            self._note_seen()

    def _forget(self) -> None:
        super()._forget()
        self._seen = [0] * len(self._seen)
