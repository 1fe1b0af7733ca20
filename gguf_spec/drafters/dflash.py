"""Drafts from DFlash and DSpark heads: all tokens of a draft from one decode.

The head's cache holds, for every token that the target has decoded, keys and values computed from
the target's states of that token: nothing of the head's own. A draft is one block after them::

    cache   g_0 g_1 … g_n-2             made from the target's states of x_0 … x_n-2
    block   [x_n-1 MASK MASK MASK]      positions n-1, n, …; the rows see each other
    rows       –    d0   d1   d2        DFlash, and DSpark with a bonus anchor
    rows      d0    d1   d2   d3        DSpark that samples from its anchor: no row is idle

The block leaves the cache before the next states come in. (``common_speculative_impl_draft_dflash``
in llama.cpp's common/speculative.cpp; the graphs are in src/models/dflash.cpp.)

Since slots are predicted side by side, a token drawn from one has no influence on the next. Two
kinds of heads mend that, each in its own way, in the graph:

DSpark adds to the logits of a slot a bias that depends on the token before it. For that it follows
the likeliest token of each slot, whatever a sampler would choose. With a temperature a drawn token
may leave this chain, and the slots behind it are biased for a token that is not there. They are
drafted all the same: with the noise of the target that gives more accepted tokens per round than
the chain itself, and more than ending the draft where it leaves the chain.

DFlash 2 hands out a lattice instead of logits: k candidates for each slot, and k x k scores that
tell how well each follows each of the slot before. Drafting walks it, from the token drawn.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np

from gguf_spec.block_format import BlockFormat
from gguf_spec.context import Run
from gguf_spec.drafters.base import Draws
from gguf_spec.drafters.hidden import HeadContext, HeadDrafter, Rows
from gguf_spec.errors import InputError
from gguf_spec.sampling import Row


class BlockContext(HeadContext, Protocol):
    """The context of a head that also decodes blocks of tokens."""

    n_vocab: int
    max_width: int

    def decode(self, runs: Sequence[Run]) -> None:
        """Append the rows of ``runs``; see ``ModelContext.decode``."""


class DFlash(HeadDrafter):
    """``draft-dflash``. With a ``p_min``, a draft ends before a token of less probability.

    A block is as long as the draft that was asked for. What a draft may have at most is said by
    the file, and by how many rows of logits ``context`` has room for.
    """

    shift = 1  # position p of the cache has the state of x_p, as if x_p+1 stood beside it

    def __init__(
        self,
        context: BlockContext,
        form: BlockFormat,
        needs: Sequence[int],
        seq: int = 0,
        *,
        p_min: float = 0.0,
    ) -> None:
        problem = form.settings_problem(p_min)
        if problem is not None:
            raise InputError(problem)
        super().__init__(context, needs, seq, p_min=p_min)
        self.spec_type = form.spec_type
        self._blocks = context
        self._form = form
        rows = context.max_width if form.causal else min(context.max_width, context.n_ubatch)
        self._n_max = min(form.n_max, rows - form.first_row)

    def _decode(self, end: int, *, outputs: bool = False) -> Rows:
        """Put the states of positions up to ``end``, exclusive, into the cache."""
        del outputs  # the states are input alone, no row predicts anything
        start = self._n_pairs
        states = self._states(start, end)
        self._blocks.decode_states(
            Run(self._seq, start, [0] * (end - start), 0), states, with_tokens=False
        )
        self._n_pairs = end
        return states

    def _continue(self, draws: Draws, last: int, limit: int) -> None:
        """Draft into ``draws`` with a block behind position ``last``."""
        context, first = self._blocks, self._form.first_row
        n = min(limit, self._n_max, context.n_ctx - (last + 1) - first)
        if n <= 0:
            return
        while self._n_pairs <= last:
            self._decode(min(self._n_pairs + context.n_ubatch, last + 1))
        block = [self._history[last + 1], *[self._form.mask] * (n + first - 1)]
        context.decode([Run(self._seq, last + 1, block, len(block))])
        self._read(draws, range(first, len(block)))
        if context.remove(self._seq, last + 1):
            self._rows.drop(last)
        else:
            self._forget()

    def _read(self, draws: Draws, rows: Iterable[int]) -> None:
        """Choose a token from each of ``rows`` of the block, until one is not worth it."""
        for row in rows:
            logits = self._logits(row)
            token = None if logits is None else draws.next(logits)
            if token is None or self._blocks.is_end(token):
                return
            self._took(token)

    def _logits(self, row: int) -> Row | None:
        """Logits of a slot, shape [n_vocab]; None to end the draft before it."""
        return self._blocks.logits(row)

    def _took(self, token: int) -> None:
        """The slot that ``_logits`` was asked for last was given ``token``."""


class DSpark(DFlash):
    """``draft-dspark``. ``p_min`` is compared with the head's confidence in a slot, the probability
    that the target will accept it, and not with the token's own."""

    def __init__(
        self,
        context: BlockContext,
        form: BlockFormat,
        needs: Sequence[int],
        seq: int = 0,
        *,
        p_min: float = 0.0,
    ) -> None:
        super().__init__(context, form, needs, seq, p_min=p_min)
        self._least_confidence, self._p_min = p_min, 0.0

    def _logits(self, row: int) -> Row | None:
        least = self._least_confidence
        # The confidence of a slot fills the whole row of a state.
        if least > 0.0 and float(self._blocks.own_state(row)[0]) < least:
            return None
        return self._blocks.logits(row)


class DFlash2(DFlash):
    """``draft-dflash`` with a selector. ``p_min`` is compared with the probability of a token among
    the candidates of its slot."""

    def _read(self, draws: Draws, rows: Iterable[int]) -> None:
        self._place = 0  # of the token before, among its slot's candidates
        self._candidates = np.empty(0, np.int64)
        self._row = np.full(self._blocks.n_vocab, -np.inf, np.float32)
        super()._read(draws, rows)

    def _logits(self, row: int) -> Row | None:
        """The scores of the candidates; all other tokens have minus infinity.

        A row of the lattice is k ids, then k scores for each of k predecessors.
        """
        k = self._form.selector
        lattice = self._blocks.own_state(row)
        scores = lattice[k : k + k * k].reshape(k, k)[self._place]
        self._row[self._candidates] = -np.inf
        self._candidates = lattice[:k].astype(np.int64)
        self._row[self._candidates] = scores
        return self._row

    def _took(self, token: int) -> None:
        self._place = int((self._candidates == token).argmax())


def block_params(target: object, form: BlockFormat, n_max: int, p_min: float) -> dict[str, Any]:
    """What the context of such a head needs besides sizes: fields of ``ContextParams``, for drafts
    of up to ``n_max`` tokens on the context ``target``.

    Where the head has a sliding window, the whole window is kept all the same: what has slid out
    of it is needed again when a prompt turns back, and the states it was made from are gone.
    """
    return {
        "other": target,
        "causal": form.causal,
        "own_states": form.reads_states(p_min),
        "max_width": form.first_row + min(n_max, form.n_max),
        "swa_full": True,
    }


def make_block_drafter(
    context: BlockContext,
    form: BlockFormat,
    needs: Sequence[int],
    seq: int = 0,
    *,
    p_min: float = 0.0,
) -> DFlash:
    """The drafter for a file of this form.

    Raises:
        InputError: the form and ``p_min`` do not go together.
    """
    kind = DFlash2 if form.selector else DSpark if form.markov else DFlash
    return kind(context, form, needs, seq, p_min=p_min)
