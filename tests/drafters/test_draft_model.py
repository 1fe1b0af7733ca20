"""The draft model's cache against the history it should hold, on a toy model."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from gguf_spec.context import Run
from gguf_spec.drafters.draft_model import DraftModel
from gguf_spec.errors import RunError
from gguf_spec.history import History
from gguf_spec.sampling import Sampler, SamplingParams, probability
from tests.toy import END, ToyContext

GREEDY = Sampler(SamplingParams())
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]


def continuation(history: Sequence[int], n: int, sampler: Sampler = GREEDY) -> list[int]:
    """What the toy of seed 1 says after ``history``: a fresh context, one token at a time."""
    tokens = list(history)
    context = ToyContext(1, n_ubatch=512, n_ctx=512)
    context.decode([Run(0, 0, tokens, 1)])
    row = len(tokens) - 1
    while len(tokens) < len(history) + n:
        tokens.append(sampler.sample(context.logits(row), len(tokens)))
        if tokens[-1] == END:
            break
        context.decode([Run(0, len(tokens) - 1, tokens[-1:], 1)])
        row = 0
    return tokens[len(history) :]


def make(history: History, **options: object) -> tuple[ToyContext, DraftModel]:
    context = ToyContext(1, **options)  # type: ignore[arg-type]
    drafter = DraftModel(context)
    drafter.begin(history)
    return context, drafter


def n_decoded(context: ToyContext) -> int:
    """Tokens decoded since the last call."""
    n = sum(len(run.tokens) for runs in context.decodes for run in runs)
    context.decodes.clear()
    return n


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("removes", [True, False], ids=["remove", "checkpoint"])
def test_cache_equals_history_after_every_round(removes: bool, temperature: float) -> None:
    """Any number of tokens accepted, any draft length, and rounds that others win in between."""
    sampler = Sampler(SamplingParams(temperature=temperature, seed=2))
    for seed in range(20):
        r = random.Random(seed)
        history = History(PROMPT)
        context, drafter = make(history, removes_tail=removes)
        for _ in range(12):
            if r.random() < 0.3:
                # Another drafter's round: this one is only told how far the history went.
                n = r.randrange(5)
                history.extend(r.choices(range(1, 24), k=n + 1))
                drafter.accept(n)
            else:
                limit = r.randrange(1, 8)
                draft = drafter.draft(limit, sampler)
                assert draft.source == "draft-simple"
                assert draft.tokens == continuation(history, limit, sampler)
                assert context.cache[0] == [*history, *draft.tokens[:-1]]
                n = r.randrange(len(draft.tokens) + 1)
                history.extend([*draft.tokens[:n], r.randrange(1, 24)])
                drafter.accept(n)
            cached = context.cache[0]
            assert cached == history[: len(cached)]
            assert len(cached) < len(history)


def test_a_round_decodes_only_what_is_new() -> None:
    history = History(PROMPT)
    context, drafter = make(history)
    draft = drafter.draft(4, GREEDY)
    assert n_decoded(context) == len(PROMPT) + 3
    # Two of four stand: two rows were computed that stay, the replacement comes in.
    history.extend([*draft.tokens[:2], 8])
    drafter.accept(2)
    assert context.cache[0] == history[:-1]
    drafter.draft(1, GREEDY)
    assert n_decoded(context) == 1
    # All stand: the last drafted token has not been decoded.
    history.extend(drafter.draft(3, GREEDY).tokens)
    n_decoded(context)
    history.extend([8])
    drafter.accept(3)
    drafter.draft(1, GREEDY)
    assert n_decoded(context) == 2


def test_rounds_of_another_drafter_cost_nothing_until_asked() -> None:
    history = History(PROMPT)
    context, drafter = make(history)
    drafter.draft(3, GREEDY)
    n_decoded(context)
    for _ in range(5):
        history.extend([7, 8, 9])
        drafter.accept(2)
    assert n_decoded(context) == 0
    assert drafter.draft(2, GREEDY).tokens == continuation(history, 2)
    assert n_decoded(context) == 15 + 1


def test_another_drafters_tokens_may_agree_with_what_is_cached() -> None:
    history = History(PROMPT)
    context, drafter = make(history)
    draft = drafter.draft(5, GREEDY)
    n_decoded(context)
    # The same five tokens were offered by somebody else, who is given the credit.
    history.extend([*draft.tokens, 8])
    drafter.accept(5)
    assert context.cache[0] == history[:-2]


def test_checkpoints_are_used_where_tails_cannot_be_removed() -> None:
    history = History(PROMPT)
    context, drafter = make(history, removes_tail=False)
    draft = drafter.draft(4, GREEDY)
    assert n_decoded(context) == len(PROMPT) + 3
    history.extend([*draft.tokens[:1], 8])
    drafter.accept(1)
    # Back at the checkpoint after the prompt: one accepted token and its successor are missing.
    assert context.cache[0] == PROMPT
    assert drafter.draft(1, GREEDY).tokens == continuation(history, 1)
    assert n_decoded(context) == 2
    # A history cut below the checkpoint leaves no choice but to start over.
    history.truncate(4)
    drafter.begin(history)
    assert context.cache[0] == []
    assert drafter.draft(2, GREEDY).tokens == continuation(history, 2)


def test_begin_keeps_a_shared_prefix() -> None:
    history = History(PROMPT)
    context, drafter = make(history)
    drafter.draft(3, GREEDY)
    n_decoded(context)
    drafter.begin(History([*PROMPT[:6], 7, 7, 7]))
    assert context.cache[0] == PROMPT[:6]
    drafter.draft(1, GREEDY)
    assert n_decoded(context) == 3
    # The same history again: the last token is decoded once more, for its logits.
    same = History([*PROMPT[:6], 7, 7, 7])
    drafter.begin(same)
    assert drafter.draft(2, GREEDY).tokens == continuation(same, 2)
    assert n_decoded(context) == 2
    # A shorter one, and one that shares nothing.
    drafter.begin(History(PROMPT[:3]))
    assert context.cache[0] == PROMPT[:2]
    drafter.begin(History([8, 8]))
    assert context.cache[0] == []


def test_catches_up_in_chunks_of_a_microbatch() -> None:
    history = History([*PROMPT, *PROMPT, *PROMPT])
    context, drafter = make(history, n_ubatch=8)
    assert drafter.draft(2, GREEDY).tokens == continuation(history, 2)
    runs = [(len(r.tokens), r.n_outputs) for runs in context.decodes for r in runs]
    assert runs == [(8, 0), (8, 0), (8, 0), (6, 1), (1, 1)]


def test_a_draft_ends_below_p_min_and_at_an_end_token() -> None:
    tokens = continuation(PROMPT, 8)
    oracle = ToyContext(1)
    oracle.decode([Run(0, 0, PROMPT, 1)])
    rows = [oracle.logits(len(PROMPT) - 1)]
    for i, token in enumerate(tokens):
        oracle.decode([Run(0, len(PROMPT) + i, [token], 1)])
        rows.append(oracle.logits(0))
    p = [probability(row, token) for row, token in zip(rows, tokens, strict=False)]
    assert len(set(np.round(p, 6))) > 2
    for p_min in (0.0, 1.0, *p, *(x + 1e-9 for x in p)):
        n = next((i for i, x in enumerate(p) if x < p_min), 8)
        drafter = DraftModel(ToyContext(1), p_min=p_min)
        drafter.begin(History(PROMPT))
        assert drafter.draft(8, GREEDY).tokens == tokens[:n]
    ended = 0
    for position in range(40):
        history = History([*PROMPT, *[1 + position % 23] * (1 + position // 23)])
        context = ToyContext(1, end_bias=4)
        drafter = DraftModel(context)
        drafter.begin(history)
        tokens = list(drafter.draft(12, GREEDY).tokens)
        if END in tokens:
            ended += 1
            assert tokens.index(END) == len(tokens) - 1
            assert END not in context.cache[0]
    assert ended > 5


@pytest.mark.parametrize("removes", [True, False], ids=["remove", "checkpoint"])
def test_a_draft_context_smaller_than_the_text(removes: bool) -> None:
    history = History(PROMPT)
    context, drafter = make(history, n_ctx=14, removes_tail=removes)
    lengths = []
    for _ in range(8):
        tokens = list(drafter.draft(9, GREEDY).tokens)
        assert tokens == continuation(history, 9)[: len(tokens)]
        lengths.append(len(tokens))
        history.extend([8])
        drafter.accept(0)
        assert context.cache[0] == history[: len(context.cache[0])]
    # 14 places hold the text and all of the draft but its last token.
    assert lengths == [5, 4, 3, 2, 1, 0, 0, 0]
    # A shorter text after that is fine again.
    shorter = History(PROMPT[:5])
    drafter.begin(shorter)
    assert drafter.draft(3, GREEDY).tokens == continuation(shorter, 3)


@pytest.mark.parametrize("computed", [True, False])
@pytest.mark.parametrize("breaks_at", [1, 2, 4])
def test_a_failed_decode_leaves_a_clean_state(breaks_at: int, computed: bool) -> None:
    class Breaks(ToyContext):
        left = breaks_at

        def decode(self, runs: Sequence[Run]) -> None:
            self.left -= 1
            if self.left == 0 and not computed:
                raise RunError("failed at once")
            super().decode(runs)
            if self.left == 0:
                raise RunError("computed, then failed")

    context = Breaks(1)
    drafter = DraftModel(context)
    history = History(PROMPT)
    drafter.begin(history)
    with pytest.raises(RunError):
        drafter.draft(5, GREEDY)
    assert context.cache[0] == []
    history.extend([8])
    drafter.accept(0)
    assert drafter.draft(5, GREEDY).tokens == continuation(history, 5)


def test_sequences_of_one_context_do_not_meet() -> None:
    context = ToyContext(1, n_seq_max=2)
    histories = [History(PROMPT), History(PROMPT[::-1])]
    drafters = [DraftModel(context, i) for i in range(2)]
    for drafter, history in zip(drafters, histories, strict=True):
        drafter.begin(history)
    for _ in range(3):
        for drafter, history in zip(drafters, histories, strict=True):
            draft = drafter.draft(3, GREEDY)
            assert draft.tokens == continuation(history, 3)
            history.extend([*draft.tokens[:1], 8])
            drafter.accept(1)
    drafters[0].close()
    assert context.cache[0] == []
    assert context.cache[1] == histories[1][:-1]


def test_a_context_that_was_used_before_starts_clean() -> None:
    context = ToyContext(1)
    context.decode([Run(0, 0, [7, 7, 7], 1)])
    history = History(PROMPT)
    drafter = DraftModel(context)
    drafter.begin(history)
    assert drafter.draft(3, GREEDY).tokens == continuation(history, 3)
