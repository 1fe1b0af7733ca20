"""What drafters that compute on the target's hidden states have in common.

Their input is pairs: a token, and the target's state where that token was predicted. With x the
tokens of a sequence and h its states (h_r is computed from x_0 … x_r), the pair of a head is
(x_e+shift, h_e+shift-1), and its prediction is x_e+shift+1. It stands at position e of the head's
cache. ``shift`` is 0 for MTP heads, whose first pair has zeros for a state, and 1 for EAGLE-3.

The pair of the newest token, which the target has not decoded yet, starts a draft. From there on
the head's own states stand in for the target's, so what it caches after that pair is thrown away
once the draft is made: outside of ``draft`` the cache holds nothing but states of the target.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from gguf_spec.context import ModelContext, Run, StatesContext
from gguf_spec.drafters.base import Draft, Draws
from gguf_spec.history import History
from gguf_spec.sampling import Row, Sampler

Rows = NDArray[np.float32]

# Drafts drop rows and add rows; with this many to spare they are seldom moved.
_SPARE_ROWS = 64


class HeadContext(Protocol):
    """The context of a draft head: a cache of pairs of one or more sequences."""

    n_ctx: int
    n_ubatch: int

    def decode_states(self, run: Run, states: Rows, *, with_tokens: bool = True) -> None:
        """Append ``run`` to its sequence, each token with its row of ``states``."""

    def draft_on(
        self,
        seq: int,
        position: int,
        limit: int,
        choose: Callable[[Row], int | None],
        stride: int = 1,
    ) -> None:
        """Draft up to ``limit`` tokens from row 0 of the last decode on: ``choose`` gives one for
        a row of logits, or None to stop. Each one but the last, which an end token is, is appended
        to ``seq`` beside the head's own state before it: at ``position``, then ``stride`` later."""

    def logits(self, row: int) -> Row:
        """Logits of row ``row`` of the last decode, shape [n_vocab]."""

    def own_state(self, row: int) -> Rows:
        """The head's own state at that row, shape [width]."""

    def is_end(self, token: int) -> bool:
        """Whether ``token`` ends a generation."""

    def remove(self, seq: int, start: int) -> bool:
        """Drop the pairs of ``seq`` from position ``start`` on."""

    def clear(self, seq: int) -> None:
        """Drop all pairs of ``seq``."""


class RowBuffer:
    """Rows of consecutive positions ``start`` to ``end`` of a sequence, exclusive."""

    def __init__(self) -> None:
        self.start = 0
        self._n = 0
        self._first = 0
        """Where in the array the row of ``start`` lies: what is dropped is not moved over."""
        self._data: Rows = np.empty((0, 0), np.float32)
        self._room: Rows | None = None

    @property
    def end(self) -> int:
        """Position after the last row."""
        return self.start + self._n

    def put(self, start: int, rows: Rows) -> None:
        """Rows of positions ``start`` on, shape [n, width], in place of what was there and after.
        Where they do not continue what is there, that is forgotten."""
        n = len(rows)
        if rows is not self._room:
            self._reserve(start, n, rows.shape[1])[:] = rows
        self._room = None
        self._n += n

    def room(self, start: int, n: int) -> Rows | None:
        """Where ``put`` would write ``n`` rows of positions ``start`` on: what is written there
        and then put is not copied. What was there and after is forgotten. None before the first
        rows came, whose width is unknown."""
        width = self._data.shape[1]
        self._room = self._reserve(start, n, width) if width else None
        return self._room

    def _reserve(self, start: int, n: int, width: int) -> Rows:
        if self.start <= start <= self.start + self._n:
            self._n = start - self.start
        else:
            self.start, self._n = start, 0
        begin = self._first + self._n
        if begin + n > len(self._data):
            kept = self._data[self._first : begin]
            if 2 * (self._n + n) > len(self._data):
                self._data = np.empty((2 * (self._n + n) + _SPARE_ROWS, width), np.float32)
            if self._n:
                self._data[: self._n] = kept
            self._first, begin = 0, self._n
        return self._data[begin : begin + n]

    def get(self, start: int, end: int) -> Rows:
        """Rows of positions ``start`` to ``end``, exclusive, all of which are there: a view."""
        assert self.start <= start <= end <= self.end
        shift = self._first - self.start
        return self._data[start + shift : end + shift]

    def cut(self, end: int) -> None:
        """Forget positions from ``end`` on."""
        self._n = max(min(self._n, end - self.start), 0)

    def drop(self, start: int) -> None:
        """Forget positions before ``start``."""
        gone = min(start - self.start, self._n)
        if gone > 0:
            self.start, self._n, self._first = self.start + gone, self._n - gone, self._first + gone


class HeadDrafter:
    """A drafter on states of the target; see the module for its pairs. ``needs`` are the states,
    which the target's context must have switched on.

    The head reads nothing until it is asked: states wait in a buffer, and when as many have come
    as fit into a batch, they are decoded. States of rejected tokens never get there. Where states
    are missing, because the target kept its cache and the head did not, there are no drafts: a head
    with a gap in its text would go on as if nothing were missing. Only ``rebuild`` begins anew in
    the middle of a text, where a cache that is wrong leaves nothing better.
    """

    spec_type: str
    shift: ClassVar[int]

    def __init__(
        self, context: HeadContext, needs: Sequence[int], seq: int = 0, *, p_min: float = 0.0
    ) -> None:
        self.needs = tuple(needs)
        self._context = context
        self._seq = seq
        self._p_min = p_min
        self.floor = 0.0
        self._history = History()
        self._text: list[int] = []
        """The tokens behind what the cache and the buffer hold."""
        self._first_pair = 0
        """Position of the first pair in the cache: 0 unless the cache was rebuilt."""
        self._n_pairs = 0
        """Position after the last pair in the cache, which has all from ``_first_pair`` on."""
        self._rows = RowBuffer()
        context.clear(seq)

    def reusable(self, prompt: Sequence[int], keep: int) -> int:
        """See ``StatesDrafter``. The pair of the first new token needs the state before it, which
        is gone where the new text turns off from the old one."""
        if keep > self._context.n_ctx:
            return keep  # too long a text for this head anyway
        same = _common_prefix(self._text, prompt)
        first = max(min(self._n_pairs, same - self.shift) + self.shift - 1, 0)
        rows = self._rows
        if rows.start <= first < rows.end:
            first = min(rows.end, same)
        return min(first, keep)

    def begin(self, history: History) -> None:
        """Keep the pairs and states that the old text shares with ``history``."""
        self._history = history
        same = _common_prefix(self._text, history)
        self._keep_pairs(max(same - self.shift, 0))
        self._rows.cut(same)
        self._text = history[:]

    def observe(self, target: ModelContext, run: Run) -> None:
        """Take the target's states of ``run``, those of a draft included."""
        rows, n = self._rows, len(run.tokens)
        room = rows.room(run.start, n)
        rows.put(run.start, cast(StatesContext, target).states(self.needs, run.row, n, room))
        if not run.n_outputs:
            self._flush(run.start + len(run.tokens))

    def draft(self, limit: int, sampler: Sampler) -> Draft:
        """See ``Drafter``."""
        last = len(self._history) - 1 - self.shift  # the pair of the newest token
        limit = min(limit, self._context.n_ctx - last)
        draws = Draws(self._history, sampler, self._p_min, self.floor)
        if limit > 0 and len(self._history) > 1 and last >= self._first_pair:
            try:
                self._keep_pairs(last)
                if self._has_rows(last + 1):
                    self._continue(draws, last, limit)
            except BaseException:
                self._forget()
                raise
        return draws.draft(self.spec_type)

    def accept(self, n_accepted: int) -> None:
        """Forget the states of rejected tokens."""
        del n_accepted  # the history says the same
        n_decoded = len(self._history) - 1
        self._rows.cut(n_decoded)
        self._text += self._history[len(self._text) :]
        self._flush(n_decoded)

    def rebuild(self) -> None:
        """Begin with an empty cache and the state of the newest token that the target has decoded.

        Earlier states are gone, and having the target compute them again would cost it a prefill.
        libllama lets an empty cache begin at any position, and rotary positions are relative: a
        head that reads on from here is soon as good as one whose prompt began here.
        """
        n_decoded = len(self._history) - 1
        newest = self._rows.end == n_decoded > self._rows.start
        row = self._rows.get(n_decoded - 1, n_decoded).copy() if newest else None
        self._rows = RowBuffer()
        if row is not None:
            self._rows.put(n_decoded - 1, row)
        self._context.clear(self._seq)
        self._first_pair = self._n_pairs = n_decoded + int(row is None) - self.shift

    def close(self) -> None:
        """Nothing to give back: the context belongs to whoever made it."""
        self._forget()

    def _prepare(self, states: Rows) -> Rows:
        """What the head decodes for rows of the target, shape [n, widths of ``needs`` summed]."""
        return states

    def _continue(self, draws: Draws, last: int, limit: int) -> None:
        """Draft into ``draws`` from pair ``last`` on."""
        context = self._context
        while last + 1 - self._n_pairs > context.n_ubatch:
            self._decode(self._n_pairs + context.n_ubatch)
        self._decode(last + 1, outputs=True)
        context.draft_on(self._seq, last + 1, limit, draws.next)
        self._n_pairs = last + 1 + len(draws.tokens)  # at most
        self._keep_pairs(last + 1)
        self._rows.drop(len(self._history) - 2)

    def _decode(self, end: int, *, outputs: bool = False) -> Rows:
        """Put pairs up to ``end``, exclusive, into the cache; at most a batch of them.

        With ``outputs``, the last one gets logits, in a decode of its own: see
        ``LlamaContext.decode_states``. The states that went in, shape [n, width].
        """
        start, shift = self._n_pairs, self.shift
        states = self._prepare(self._states(start, end))
        tokens = self._history[start + shift : end + shift]
        n = end - start - int(outputs)
        if n:
            self._context.decode_states(Run(self._seq, start, tokens[:n], 0), states[:n])
        if outputs:
            self._context.decode_states(Run(self._seq, end - 1, tokens[n:], 1), states[n:])
        self._n_pairs = end
        return states

    def _states(self, start: int, end: int) -> Rows:
        """The target's states in pairs ``start`` to ``end``, exclusive."""
        first = start + self.shift - 1
        if first >= 0:
            return self._rows.get(first, end + self.shift - 1)
        rows = self._rows.get(0, end - 1)
        return np.concatenate([np.zeros((1, rows.shape[1]), np.float32), rows])

    def _has_rows(self, end: int) -> bool:
        """Whether the buffer has the states of all pairs up to ``end`` that are not cached."""
        first = max(self._n_pairs + self.shift - 1, 0)
        return self._rows.start <= first and self._rows.end >= end + self.shift - 1

    def _flush(self, n_final: int) -> None:
        """Decode what waits if it is a batch; the first ``n_final`` rows are known to stay."""
        rows, context = self._rows, self._context
        if rows.end - rows.start < context.n_ubatch:
            return
        end = min(n_final + 1, len(self._history)) - self.shift
        if not self._has_rows(end) or end > context.n_ctx:
            rows.drop(rows.end)  # of no use, now or later
            return
        try:
            while self._n_pairs < end:
                self._decode(min(self._n_pairs + context.n_ubatch, end))
        except BaseException:
            self._forget()
            raise
        rows.drop(n_final - 1)

    def _keep_pairs(self, n: int) -> None:
        """Drop cached pairs from ``n`` on."""
        if n >= self._n_pairs:
            return
        if n <= self._first_pair:
            self._context.clear(self._seq)
            self._first_pair = n
        elif not self._context.remove(self._seq, n):
            self._context.clear(self._seq)
            self._first_pair = n = 0
        self._n_pairs = n

    def _forget(self) -> None:
        self._context.clear(self._seq)
        self._first_pair = self._n_pairs = 0
        self._rows = RowBuffer()
        self._text = []


def _common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many leading tokens agree."""
    n = min(len(a), len(b))
    if a[:n] == b[:n]:
        return n
    return next((i for i in range(n) if a[i] != b[i]), n)  # a list never equals a tuple
