"""A toy model that computes exact logits from a seeded table: equality can be tested exactly."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from gguf_spec.context import NoSlotError, Run

END = 0


@lru_cache(maxsize=256)  # the seeds of the largest grid, with and without blur: 15 MB
def _table(seed: int, n_vocab: int, blur: float, end_bias: int) -> NDArray[np.float32]:
    """Logits by the last two tokens, shape [n_vocab + 1, n_vocab, n_vocab]; the first index is
    ``n_vocab`` when there is one token only. Contexts of equal arguments share it: read only."""
    shape = (n_vocab + 1, n_vocab, n_vocab)
    table = np.random.default_rng((seed, 7)).integers(0, 9, shape).astype(np.float32)
    if blur:
        blurred = np.random.default_rng((seed, 8)).random(shape[:2]) < blur
        other = np.random.default_rng((seed, 9)).integers(0, 9, shape).astype(np.float32)
        table[blurred] = other[blurred]
    table[..., END] += end_bias
    table.flags.writeable = False
    return table


class ToyContext:
    """A model of a few tokens with integer logits, and a cache that it really reads from.

    The logits are a table look-up by the last two cached tokens, and a small ripple that depends on
    every cached token, so that one wrong token left in the cache shows sooner or later. What would
    abort the process in libllama is an AssertionError here. ``blur`` is the share of table rows
    that belong to another seed: a drafter that is often right.
    """

    n_rollback = 0

    def __init__(
        self,
        seed: int,
        *,
        n_vocab: int = 24,
        n_ctx: int = 256,
        n_seq_max: int = 1,
        n_ubatch: int = 16,
        max_width: int = 16,
        removes_tail: bool = True,
        blur: float = 0.0,
        end_bias: int = -3,
    ) -> None:
        self.seed = seed
        self.n_vocab = n_vocab
        self.n_ctx = n_ctx
        self.n_seq_max = n_seq_max
        self.n_ubatch = n_ubatch
        self.max_width = max_width
        self.n_batch = n_seq_max * max(n_ubatch, max_width)
        self.removes_tail = removes_tail
        self.busy_seconds = 0.0
        self.blur = blur
        self.end_bias = end_bias
        self.cache: list[list[int]] = [[] for _ in range(n_seq_max)]
        self.decodes: list[list[Run]] = []
        self.full_when_wider_than: int | None = None
        self._rows: dict[int, tuple[int, int, int]] = {}
        self._table = _table(seed, n_vocab, blur, end_bias)

    def decode(self, runs: Sequence[Run]) -> None:
        assert runs, "empty batch"
        assert sum(len(run.tokens) for run in runs) <= self.n_batch
        if self.full_when_wider_than is not None and any(
            run.n_outputs > self.full_when_wider_than for run in runs
        ):
            raise NoSlotError("no room")
        self.decodes.append(list(runs))
        self._rows.clear()
        row = 0
        for run in runs:
            cache = self.cache[run.seq]
            assert run.start == len(cache), f"position {run.start}, cache holds {len(cache)}"
            assert run.tokens, "empty run"
            assert len(cache) + len(run.tokens) <= self.n_ctx, "past the context"
            assert run.n_outputs <= self.max_width
            run.row = row
            assert min(run.tokens) >= 0, "illegal id"
            assert max(run.tokens) < self.n_vocab, "illegal id"
            cache += run.tokens
            # What a row is computed from, taken now: the cache may be cut before it is looked at.
            first = len(cache) - run.n_outputs
            ripple = zlib.crc32(bytes(cache[:first]))
            before = cache[first - 1] if first else self.n_vocab
            for i in range(first, len(cache)):
                token = cache[i]
                ripple = zlib.crc32(token.to_bytes(1, "little"), ripple)
                self._rows[row + i - run.start] = (before, token, ripple)
                before = token
            row += len(run.tokens)

    def logits(self, row: int) -> NDArray[np.float32]:
        before, token, ripple = self._rows[row]
        logits: NDArray[np.float32] = self._table[before, token].copy()
        logits[ripple % self.n_vocab] += 1.0 + (ripple >> 8) % 2
        return logits

    def is_end(self, token: int) -> bool:
        return token == END

    def remove(self, seq: int, start: int) -> bool:
        if start >= len(self.cache[seq]):
            return True
        if not self.removes_tail and start > 0:
            return False
        del self.cache[seq][start:]
        return True

    def save(self, seq: int) -> object:
        return list(self.cache[seq])

    def restore(self, seq: int, checkpoint: object) -> None:
        assert isinstance(checkpoint, list)
        self.cache[seq] = list(checkpoint)

    def clear(self, seq: int) -> None:
        self.cache[seq] = []
