"""A hybrid target after forced rejections: its recurrent state is that of a run without drafts.

tiny-mtp has gated delta nets, whose state cannot be cut back like a cache of keys and values. What
a rejected draft left in it would change what follows, not at once, but for good.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from gguf_spec.context import Run
from gguf_spec.control import FixedPolicy
from gguf_spec.engine import Engine, Request
from gguf_spec.sampling import Sampler
from tests.drafters.heads import EXACT, GREEDY, Bench, bench
from tests.test_backend import PROMPTS
from tests.test_engine import Oracle

N = 48


def decode(made: Bench, tokens: Sequence[int]) -> np.ndarray:
    """The logits after ``tokens``, decoded alone and at once."""
    made.target.clear(0)
    made.target.decode([Run(0, 0, list(tokens), 1)])
    return made.target.logits(len(tokens) - 1).copy()


@pytest.mark.parametrize("n_rs_seq", [0, 3], ids=["checkpoints", "snapshots"])
@pytest.mark.parametrize(("length", "wrong"), [(1, 0), (3, 0), (3, 1), (3, 2), (8, 0), (8, 6)])
def test_what_follows_a_rejection_is_that_of_a_fresh_run(
    length: int, wrong: int, n_rs_seq: int
) -> None:
    """Every draft is wrong at one place. The text, the state behind it, and the text after a second
    prompt that goes on from there are those of fresh sequences."""
    with bench("draft-mtp", 8, n_rs_seq=n_rs_seq, **EXACT) as made:
        prompt = made.prompt(PROMPTS[0])
        expected = made.plain(prompt, n=N)
        oracle = Oracle([*prompt, *expected], frozenset([wrong]), made.target.model.n_vocab)
        engine = Engine(made.target)
        sequence = engine.open([oracle], FixedPolicy([length]))
        text: list[int] = []
        for step in engine.generate(sequence, Request(prompt, Sampler(GREEDY), N)):
            text += step.tokens
            assert step.n_accepted == min(wrong, step.n_drafted)
            assert made.target._length(0) == sequence.n_cached
        assert text == expected
        assert sequence.progress.spec.total.num_drafts >= N // (wrong + 1) - 2

        history = sequence.history[:]
        more = [*history, *made.prompt("\n\ndef close(self):\n")]
        steps = engine.generate(sequence, Request(more, Sampler(GREEDY), N))
        again = [token for step in steps for token in step.tokens]
        assert sequence.progress.cached_tokens == len(history) - 1
        assert again == made.plain(more, n=N)


@pytest.mark.parametrize("n_rs_seq", [0, 3], ids=["checkpoints", "snapshots"])
def test_the_state_after_a_rejection(n_rs_seq: int) -> None:
    """Looked at directly: the logits after the next token."""
    with bench("draft-mtp", 8, n_rs_seq=n_rs_seq, **EXACT) as made:
        prompt = made.prompt(PROMPTS[0])
        expected = made.plain(prompt, n=N)
        for length, wrong in ((1, 0), (3, 1), (8, 5)):
            engine = Engine(made.target)
            oracle = Oracle([*prompt, *expected], frozenset([wrong]), made.target.model.n_vocab)
            sequence = engine.open([oracle], FixedPolicy([length]))
            steps = engine.generate(sequence, Request(prompt, Sampler(GREEDY), N))
            for step in steps:
                if step.n_drafted and len(sequence.history) > len(prompt) + 20:
                    break
            assert step.n_accepted < step.n_drafted
            history = sequence.history[:]
            made.target.decode([Run(0, len(history) - 1, history[-1:], 1)])
            found = made.target.logits(0).copy()
            other = decode(made, history[:-3] + history[-1:])
            fresh = decode(made, history)
            assert np.abs(found - fresh).max() < 0.05 < np.abs(found - other).max()
