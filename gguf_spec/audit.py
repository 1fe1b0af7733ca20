"""Is a text what plain decoding would have produced? Its tokens are scored again, one by one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from gguf_spec.context import ModelContext, Run
from gguf_spec.sampling import Row, Sampler

# Batches of these widths are computed to see by how much logits differ between widths.
_WIDTHS = (2, 3, 5, 9, 17)
# At so many places at least, spread over the text, and at so many differences at most.
_PLACES, _MOST_DIFFERENCES = 16, 16

Verdict = Literal["token-identical", "identical-up-to-near-ties", "broken"]


@dataclass(frozen=True, slots=True)
class Difference:
    """At ``index`` of the text stands ``token``, and plain decoding chooses ``expected``, which is
    ahead by ``gap``, in logits; infinite if ``token`` is forbidden there."""

    index: int
    token: int
    expected: int
    gap: float


@dataclass(frozen=True, slots=True)
class Audit:
    """``checked`` tokens were scored. ``noise`` is the largest difference of a logit that batches
    of other widths made on this text; it is measured only if a token differs."""

    checked: int
    differing: tuple[Difference, ...] = ()
    noise: float = 0.0

    @property
    def verdict(self) -> Verdict:
        """A difference is a near-tie if the gap is no larger than what widths make of a logit."""
        if not self.differing:
            return "token-identical"
        if all(difference.gap <= self.noise for difference in self.differing):
            return "identical-up-to-near-ties"
        return "broken"

    def report(self) -> dict[str, Any]:
        """The JSON document's ``audit``; an infinite gap is null."""
        return {
            "checked": self.checked,
            "differing": [
                {
                    "index": one.index,
                    "token": one.token,
                    "expected": one.expected,
                    "gap": one.gap if math.isfinite(one.gap) else None,
                }
                for one in self.differing
            ],
            "noise": self.noise,
            "verdict": self.verdict,
        }


def audit(
    target: ModelContext, seq: int, prompt: Sequence[int], tokens: Sequence[int], sampler: Sampler
) -> Audit:
    """Score ``tokens`` after ``prompt``: decode them one by one in an empty cache, and ask
    ``sampler``, which has drawn nothing yet, for its choice at each place.

    Each place is judged after the tokens that stand before it in the text, so one difference does
    not make others. The cache of ``seq`` holds the text afterwards.
    """
    text = [*prompt, *tokens]
    n_prompt = len(prompt)
    every = max(len(tokens) // _PLACES, 1)
    kept: dict[int, Row] = {}
    differing: list[Difference] = []
    for index, row in enumerate(_plain_rows(target, seq, text, n_prompt)):
        position, token = n_prompt + index, tokens[index]
        previous = text[max(position - sampler.lookback, 0) : position]
        expected = sampler.sample(row, position, previous)
        if expected != token:
            gap = sampler.gap(row, position, previous, expected, token)
            differing.append(Difference(index, token, expected, gap))
        if index % every == 0 or (expected != token and len(differing) <= _MOST_DIFFERENCES):
            kept[position - 1] = row.copy()
    noise = _noise(target, seq, text[:-1], n_prompt, kept) if differing else 0.0
    return Audit(len(tokens), tuple(differing), noise)


def _plain_rows(
    target: ModelContext, seq: int, text: Sequence[int], n_prompt: int
) -> Iterator[Row]:
    """Logits before each token behind the prompt, as the engine computes them without drafts."""
    run = _prefill(target, seq, text, n_prompt)
    for start in range(n_prompt, len(text)):
        yield target.logits(run.row + len(run.tokens) - 1)
        run = Run(seq, start, text[start : start + 1], 1)
        if start + 1 < len(text):
            target.decode([run])


def _prefill(target: ModelContext, seq: int, text: Sequence[int], n_prompt: int) -> Run:
    """The prompt in an empty cache; the last run of it has the logits behind it."""
    target.clear(seq)
    for start in range(0, n_prompt, target.n_ubatch):
        end = min(start + target.n_ubatch, n_prompt)
        run = Run(seq, start, text[start:end], int(end == n_prompt))
        target.decode([run])
    return run


def _noise(
    target: ModelContext, seq: int, text: Sequence[int], n_prompt: int, kept: dict[int, Row]
) -> float:
    """By how much at most the logits of rows ``kept`` (by position) differ in wider batches."""
    largest = 0.0
    for width in _WIDTHS:
        if width > target.max_width:
            break
        _prefill(target, seq, text, n_prompt)
        for start in range(n_prompt, len(text), width):
            run = Run(seq, start, text[start : start + width], len(text[start : start + width]))
            target.decode([run])
            for i in range(len(run.tokens)):
                if (plain := kept.get(start + i)) is not None:
                    difference = np.abs(target.logits(run.row + i) - plain)
                    largest = max(largest, float(np.nanmax(difference)))
    return largest
