"""Comparing batches with single decoding, on a context whose differences are known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from gguf_spec.context import Run
from gguf_spec.control import FixedPolicy
from gguf_spec.engine import Engine, Request
from gguf_spec.equality import compare_widths, plain_greedy, rows_needed
from gguf_spec.sampling import Sampler, SamplingParams
from gguf_spec.widths import limits_of
from tests.toy import END, ToyContext

TEXT = [1 + i * 7 % 23 for i in range(250)]


class Rounding(ToyContext):
    """A toy whose batches of more than ``exact_width`` rows are off by a little, once its cache
    holds more than ``from_depth`` tokens."""

    exact_width, from_depth = 5, 40

    def decode(self, runs: Sequence[Run]) -> None:
        super().decode(runs)
        self.off = any(
            run.n_outputs > self.exact_width and run.start >= self.from_depth for run in runs
        )

    def logits(self, row: int) -> NDArray[np.float32]:
        logits = super().logits(row)
        return logits + np.float32(0.25) * (np.arange(len(logits)) == 3) if self.off else logits


@pytest.mark.parametrize("removes_tail", [True, False])
def test_finds_the_width_and_the_depth(removes_tail: bool) -> None:
    target = Rounding(3, removes_tail=removes_tail)
    results = list(compare_widths(target, TEXT, range(1, 9), [20, 100]))
    wrong = {(r.depth, r.width) for r in results if not r.identical}
    assert wrong == {(100, 6), (100, 7), (100, 8)}
    assert {r.max_logit_difference for r in results if not r.identical} == {0.25}
    assert all(r.rows >= 16 for r in results)
    limits = limits_of(results)
    assert (limits.at(20), limits.at(60), limits.at(100)) == (8, 5, 5)
    assert target.cache == [[]]


def test_flips_are_counted() -> None:
    class Flipping(Rounding):
        exact_width = 1

        def logits(self, row: int) -> NDArray[np.float32]:
            logits = super().logits(row)
            return np.roll(logits, 1) if self.off else logits

    (result,) = compare_widths(Flipping(3), TEXT, [4], [100])
    assert result.argmax_flips == result.rows == 16
    assert result.identical_rows == 0


def test_needs_no_more_text_than_it_says() -> None:
    widths = [1, 3, 7, 16]
    text = TEXT[: 30 + rows_needed(widths)]
    assert len(list(compare_widths(ToyContext(1), text, widths, [30]))) == 4
    with pytest.raises(AssertionError):
        list(compare_widths(ToyContext(1), text[:-1], widths, [30]))


@pytest.mark.parametrize("seed", range(20))
def test_plain_greedy_is_the_engine_without_drafters(seed: int) -> None:
    target = ToyContext(seed)
    prompt = TEXT[seed : seed + 40]
    steps = plain_greedy(target, prompt, 60)
    engine = Engine(target)
    sequence = engine.open([], FixedPolicy([]))
    request = Request(prompt, Sampler(SamplingParams()), 60)
    tokens = [token for step in engine.generate(sequence, request) for token in step.tokens]
    assert [step.token for step in steps] == tokens
    assert len(tokens) == 60 or tokens[-1] == END
    for step in steps:
        assert step.gap(step.token) == 0.0
        assert step.top2_gap == step.gap(step.ids[1]) >= 0.0
