"""Tokens that may not come next: what a grammar forbids, applied where it cannot change the draw.

The mask stands after bias and penalties and before the filters, so that top-k, top-p and min-p
choose among legal tokens. llama.cpp samples first and masks only if the token turns out illegal;
that is another distribution, and one that depends on the order of draws. This one is explicit: the
same row, position and preceding tokens give the same token, whoever asks.

Asking a grammar about every token of a vocabulary is slow, and rarely needed: the filters keep a
prefix of the tokens in the order of falling logits, so the likeliest are asked about until what
remains cannot change what is kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gguf_spec.errors import RunError
from gguf_spec.sampling.filters import total_weight, weights
from gguf_spec.sampling.maxima import Maxima, Row
from gguf_spec.sampling.noise import Ids, Scores
from gguf_spec.sampling.params import SamplingParams

# So many of the likeliest tokens are asked about, then so many, then all.
_CHUNKS = (8, 64, 512)
# Sums of weights are float32 in places; what hangs by less than this is not settled.
_SLACK = 1e-4


class Mask(Protocol):
    """What may come next in a text that began where the mask was made."""

    def legal(self, ids: Ids) -> NDArray[np.bool_]:
        """Which of the tokens ``ids`` may come next; shape like ``ids``. Changes nothing."""

    def advance(self, token: int) -> None:
        """``token`` has come.

        Raises:
            RunError: it is not legal; nothing has changed.
        """

    def copy(self) -> Mask:
        """One of its own in the same state."""


class Follower:
    """A mask that keeps up with a text: its state is a function of the tokens that stand.

    It begins at the first position it is asked for, and learns of tokens when the next position is
    asked for: a token that was drawn but did not stand never reaches it.

    A follower with a ``leader`` is a drafter's: it begins where its leader is, and goes back there
    whenever the position does not follow its own, as when a new draft begins.
    """

    __slots__ = ("_leader", "_mask", "_position", "_start")

    def __init__(self, start: Mask, leader: Follower | None = None) -> None:
        self._start = start
        self._leader = leader
        self._mask: Mask | None = None
        self._position = -1

    def at(self, position: int, previous: Sequence[int]) -> Mask | None:
        """The mask for ``position``, after the tokens ``previous``; None if a drafter's text has
        left what is legal, and anything may follow."""
        if self._leader is not None:
            return self._behind(self._leader, position, previous)
        if self._mask is None:
            self._mask, self._position = self._start.copy(), position
        self._advance(position, previous)
        return self._mask

    def fresh(self) -> Follower:
        """One at the beginning."""
        return Follower(self._start)

    def for_drafter(self) -> Follower:
        """One that runs ahead of this one and back."""
        return Follower(self._start, self)

    def _advance(self, position: int, previous: Sequence[int]) -> None:
        missing = position - self._position
        if missing < 0 or missing > len(previous):
            raise RunError(
                f"the grammar stands at position {self._position}, and cannot go to {position} "
                f"with {len(previous)} tokens"
            )
        assert self._mask is not None
        for token in previous[len(previous) - missing :]:
            self._mask.advance(token)
            self._position += 1

    def _behind(self, leader: Follower, position: int, previous: Sequence[int]) -> Mask | None:
        if leader._mask is None:
            return None
        if not 0 <= position - self._position <= 1 or self._position < leader._position:
            if position - leader._position > len(previous):
                return None
            self._mask, self._position = leader._mask.copy(), leader._position
        try:
            self._advance(position, previous)
        except RunError:
            self._mask, self._position = None, -1
        return self._mask


def allowed(
    row: Row,
    mask: Mask,
    params: SamplingParams,
    greedy: bool,
    writable: Callable[[Row], Row],
    position: int,
) -> Row:
    """``row`` with -inf for illegal tokens: for all that could be kept by the filters.

    ``writable`` gives a row in memory that may be written to.

    Raises:
        RunError: no token of the vocabulary is legal.
    """
    n_vocab = len(row)
    ordered = greedy or (params.filters and not params.mirostat)
    if ordered:
        top = Maxima(row)
        if not math.isfinite(top.peak):
            return row  # no token can be chosen, and the sampler says so
        for size in _CHUNKS:
            if size >= n_vocab:
                break
            if not greedy and params.top_k > 0 and size < min(params.top_k, _CHUNKS[1]):
                continue
            ids = top.largest(size)
            legal = mask.legal(ids)
            if not legal.any() or row[ids[legal][0]] == -math.inf:
                continue
            if greedy or _settled(top, ids, legal, params):
                return without(row, ids[~legal], writable)
    ids = np.arange(n_vocab)
    legal = mask.legal(ids)
    if not legal.any() or row[legal].max() == -math.inf:
        raise RunError(
            f"no token of the vocabulary may come at position {position}: the grammar allows none",
            hint="a character that it demands may not exist in this vocabulary, or logit_bias "
            "forbids the tokens that it allows",
        )
    return without(row, ids[~legal], writable)


def without(row: Row, illegal: Ids, writable: Callable[[Row], Row]) -> Row:
    """``row`` with -inf for the tokens ``illegal``."""
    if len(illegal):
        row = writable(row)
        row[illegal] = -math.inf
    return row


def _settled(top: Maxima, ids: Ids, legal: NDArray[np.bool_], params: SamplingParams) -> bool:
    """Whether the filters keep the same tokens, whatever the tokens behind ``ids`` are.

    ``ids`` are the likeliest in falling order. Those behind add to the weight that top-p is a share
    of: something between nothing and all that they have.
    """
    values = top.row[ids]
    known = values[legal]
    by_count = 0 < params.top_k < len(top.row)
    if by_count and len(known) >= params.top_k:
        return True
    peak, last = float(known[0]), float(values[-1])
    n_floor, out_of_reach = len(known), False
    if params.min_p > 0.0:
        floor = np.float32(peak + min(math.log(params.min_p), 0.0))
        n_floor = int(np.count_nonzero(known >= floor))
        out_of_reach = bool(np.float32(last) < floor)
    if params.top_p >= 1.0:
        return out_of_reach
    reached: Scores = weights(known, peak).cumsum()
    total = float(reached[-1])
    if by_count:
        tail = (params.top_k - len(known)) * math.exp(min(last - peak, 0.0))
    else:
        with np.errstate(over="ignore"):
            tail = total_weight(np.minimum(top.row, np.float32(peak)), peak)
        tail -= float(weights(np.minimum(values, np.float32(peak)), peak).sum())
        tail = max(tail, 0.0)
    least = params.top_p * total * (1.0 - _SLACK)
    most = params.top_p * (total + tail * (1.0 + _SLACK)) * (1.0 + _SLACK)
    n_least = min(int(reached.searchsorted(least)) + 1, n_floor)
    n_most = min(int(reached.searchsorted(most)) + 1, n_floor)
    if most > total and not out_of_reach:
        return False
    return n_least == n_most
