"""Measures whether a batch computes what single decoding computes, and decodes plainly.

What is here works on a context alone, without the engine: it is what the engine is held against.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gguf_spec.context import ModelContext, Run
from gguf_spec.widths import WidthResult

Logits = NDArray[np.float32]
#: Rows compared at least for each width and depth.
LEAST_ROWS = 16
_KEPT = 16  # of the best logits of a row


@dataclass(frozen=True, slots=True)
class PlainStep:
    """A token of plain greedy decoding: ``ids`` and ``logits`` of the best few, best first."""

    ids: tuple[int, ...]
    logits: tuple[float, ...]

    @property
    def token(self) -> int:
        """The one that was chosen."""
        return self.ids[0]

    @property
    def top2_gap(self) -> float:
        """How much better the best logit is than the second."""
        return self.logits[0] - self.logits[1]

    def gap(self, token: int) -> float:
        """How much better the best logit is than ``token``'s: at least, where that is not among
        the kept ones."""
        if token in self.ids:
            return self.logits[0] - self.logits[self.ids.index(token)]
        return self.logits[0] - self.logits[-1]


@dataclass(slots=True)
class _Text:
    """The text that a comparison decodes, and where the sequence stands in it."""

    target: ModelContext
    seq: int
    tokens: Sequence[int]
    cached: int = 0
    saved: object = field(default=None)

    def advance(self, depth: int) -> None:
        """Fill the cache up to ``depth`` tokens, as a prompt is."""
        while self.cached < depth:
            end = min(self.cached + self.target.n_ubatch, depth)
            chunk = list(self.tokens[self.cached : end])
            self.target.decode([Run(self.seq, self.cached, chunk, 0)])
            self.cached = end
        self.saved = None if self.target.removes_tail else self.target.save(self.seq)

    def back(self, depth: int) -> None:
        """Drop what came after ``depth``."""
        if self.target.removes_tail:
            self.target.remove(self.seq, depth)
        else:
            self.target.restore(self.seq, self.saved)
        self.cached = depth

    def rows(self, width: int) -> list[Logits]:
        """Decode the next ``width`` tokens in one batch; their logits, copied."""
        run = Run(
            self.seq, self.cached, list(self.tokens[self.cached : self.cached + width]), width
        )
        self.target.decode([run])
        self.cached += width
        return [self.target.logits(run.row + i).copy() for i in range(width)]


def compare_widths(
    target: ModelContext,
    tokens: Sequence[int],
    widths: Sequence[int],
    depths: Sequence[int],
    *,
    seq: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[WidthResult]:
    """Decode ``tokens`` (teacher-forced) one by one and in batches of each of ``widths``, after
    each of ``depths`` cached tokens, and compare the logits. The sequence is cleared.

    Every depth is filled as a prompt is, in chunks of n_ubatch. Per width at least ``LEAST_ROWS``
    rows are compared. ``tokens`` must reach past the last depth by ``rows_needed(widths)``; no
    width may be larger than the context's ``max_width``.
    """
    target.clear(seq)
    text = _Text(target, seq, tokens)
    n_rows = rows_needed(widths)
    for number, depth in enumerate(sorted(depths)):
        text.advance(depth)
        single = [text.rows(1)[0] for _ in range(n_rows)]
        text.back(depth)
        for done, width in enumerate(widths):
            yield _compare(text, depth, width, single)
            if progress is not None:
                progress(number * len(widths) + done + 1, len(depths) * len(widths))
        text.saved = None
    target.clear(seq)


def rows_needed(widths: Sequence[int]) -> int:
    """How many tokens after a depth ``compare_widths`` decodes."""
    return max(_batches(width) * width for width in widths)


def _batches(width: int) -> int:
    return -(-LEAST_ROWS // width)


def _compare(text: _Text, depth: int, width: int, single: Sequence[Logits]) -> WidthResult:
    rows = [row for _ in range(_batches(width)) for row in text.rows(width)]
    text.back(depth)
    identical = flips = 0
    largest = 0.0
    for row, alone in zip(rows, single, strict=False):
        if np.array_equal(row, alone):
            identical += 1
            continue
        difference = np.abs(row.astype(np.float64) - alone)
        # Masked-out tokens are minus infinity in both.
        largest = max(largest, float(np.nanmax(difference)))
        flips += int(row.argmax() != alone.argmax())
    return WidthResult(width, depth, len(rows), identical, largest, flips)


def plain_greedy(
    target: ModelContext, prompt: Sequence[int], n_tokens: int, *, seq: int = 0
) -> list[PlainStep]:
    """Decode ``n_tokens`` after ``prompt`` one by one, always the likeliest; fewer where the
    context ends or an end token comes. The sequence is cleared before and after."""
    target.clear(seq)
    tokens = list(prompt)
    run = Run(seq, 0, tokens, 0)
    for start in range(0, len(tokens), target.n_ubatch):
        chunk = tokens[start : start + target.n_ubatch]
        run = Run(seq, start, chunk, int(start + len(chunk) == len(tokens)))
        target.decode([run])
    steps: list[PlainStep] = []
    while True:
        step = _best(target.logits(run.row + len(run.tokens) - 1))
        steps.append(step)
        position = len(prompt) + len(steps) - 1
        if len(steps) >= n_tokens or position >= target.n_ctx or target.is_end(step.token):
            break
        run = Run(seq, position, [step.token], 1)
        target.decode([run])
    target.clear(seq)
    return steps


def _best(row: Logits) -> PlainStep:
    first = int(row.argmax())  # of equal ones the first, as everywhere
    kept = np.argpartition(row, -_KEPT)[-_KEPT:] if len(row) > _KEPT else np.arange(len(row))
    others = [int(i) for i in kept[np.argsort(-row[kept], kind="stable")] if i != first]
    ids = (first, *others)
    return PlainStep(ids, tuple(float(row[i]) for i in ids))
