"""The n-gram drafter against a literal rendering of llama.cpp's common_ngram_simple_draft."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gguf_spec.drafters.ngram import NgramSimple
from gguf_spec.history import History
from gguf_spec.sampling import Sampler, SamplingParams

SAMPLER = Sampler(SamplingParams())


def reference(n: int, m: int, tokens: Sequence[int], sampled: int) -> list[int]:
    """common/ngram-map.cpp, line by line."""
    cur_len = len(tokens)
    if cur_len <= n + m + 1:
        return []
    pattern = [tokens[j] for j in range(cur_len - n + 1, cur_len)] + [sampled]
    match_pos = 0
    for j in range(cur_len - n - 1, 0, -1):
        if all(tokens[j + k] == pattern[k] for k in range(len(pattern))):
            match_pos = j
            break
    if match_pos == 0:
        return []
    copy_max = min(m, cur_len - (match_pos + n))
    if copy_max < n:
        return []
    return [tokens[match_pos + n + j] for j in range(copy_max)]


def expected(drafter: NgramSimple, history: Sequence[int]) -> list[int]:
    if not history:
        return []
    return reference(drafter.size_n, drafter.size_m, history[:-1], history[-1])


def propose(drafter: NgramSimple, limit: int = 10_000) -> list[int]:
    draft = drafter.draft(limit, SAMPLER)
    assert draft.source == "ngram-simple"
    return list(draft.tokens)


@st.composite
def texts(draw: st.DrawFn) -> list[int]:
    """Few kinds of tokens, and long repeats of what stood before."""
    seed = draw(st.integers(0, 2**32))
    r = random.Random(seed)
    kinds = draw(st.sampled_from([[7], [0, 1], [0, 1, 256], [3, 4, 5, 6, 2**31 - 1]]))
    text: list[int] = []
    for _ in range(draw(st.integers(0, 8))):
        if text and r.random() < 0.6:
            start = r.randrange(len(text))
            text += text[start : start + r.randrange(1, 25)]
        else:
            text += r.choices(kinds, k=r.randrange(1, 12))
    return text


SIZES = st.tuples(st.integers(1, 6), st.integers(1, 12))


@settings(max_examples=300, deadline=None)
@given(texts(), SIZES, st.integers(1, 9), st.integers(1, 14))
def test_growing_equals_rebuilt_equals_llama_cpp(
    text: list[int], sizes: tuple[int, int], chunk: int, limit: int
) -> None:
    history = History()
    growing, lazy = NgramSimple(*sizes), NgramSimple(*sizes)
    growing.begin(history)
    lazy.begin(history)
    for i, token in enumerate(text):
        history.extend([token])
        wanted = expected(growing, history)
        assert propose(growing) == wanted
        assert propose(growing, limit) == wanted[:limit]
        if i % chunk == 0:
            assert propose(lazy) == wanted
    rebuilt = NgramSimple(*sizes)
    rebuilt.begin(history)
    assert propose(rebuilt) == expected(rebuilt, history)


@settings(max_examples=200, deadline=None)
@given(texts(), st.lists(st.tuples(st.floats(0, 1), texts()), max_size=3), SIZES, st.booleans())
def test_survives_truncation_and_regrowth(
    text: list[int], edits: list[tuple[float, list[int]]], sizes: tuple[int, int], begins: bool
) -> None:
    history = History(text)
    drafter = NgramSimple(*sizes)
    drafter.begin(history)
    assert propose(drafter) == expected(drafter, history)
    for share, more in edits:
        history.truncate(int(share * len(history)))
        if begins:
            drafter.begin(history)
        # As long as before or longer when the drafter looks again: the length gives nothing away.
        history.extend(more)
        assert propose(drafter) == expected(drafter, history)
        for token in text[:6]:
            history.extend([token])
            assert propose(drafter) == expected(drafter, history)


def test_worked_example() -> None:
    drafter = NgramSimple(2, 4)
    #                  0  1  2  3  4  5  6  7  8  9
    history = History([9, 1, 2, 3, 4, 5, 1, 2, 6, 7])
    drafter.begin(history)
    assert propose(drafter) == []
    history.extend([1, 2])
    # The latest earlier "1 2" stands at 6; 6 7 1 followed, and the last 2 may not be copied.
    assert propose(drafter) == [6, 7, 1]
    assert propose(drafter, 2) == [6, 7]
    history.truncate(8)
    history.extend([3])
    # "2 3" stood at 2: 4 5 1 2 followed.
    assert propose(drafter) == [4, 5, 1, 2]


def test_the_first_token_starts_no_match() -> None:
    drafter = NgramSimple(2, 3)
    drafter.begin(History([1, 2, 3, 4, 5, 6, 7, 1, 2]))
    assert propose(drafter) == []
    drafter.begin(History([0, 1, 2, 3, 4, 5, 6, 7, 1, 2]))
    assert propose(drafter) == [3, 4, 5]


@pytest.mark.parametrize(("length", "found"), [(7, False), (8, True)])
def test_short_histories_are_left_alone(length: int, found: bool) -> None:
    drafter = NgramSimple(2, 3)
    drafter.begin(History([5] * length))
    # All tokens equal: the latest match ends two before the end and leaves one token, so n = 2
    # finds nothing ever; a period of three leaves enough.
    assert propose(drafter) == []
    drafter.begin(History(([5, 6, 7] * 4)[:length]))
    assert bool(propose(drafter)) is found


def test_a_new_history_is_not_answered_from_the_old_one() -> None:
    drafter = NgramSimple(1, 4)
    drafter.begin(History([0, 1, 2, 3, 4, 5, 6, 7, 1]))
    assert propose(drafter) == [2, 3, 4, 5]
    drafter.begin(History([0, 9, 8, 7, 6, 5, 4, 3, 1]))
    assert propose(drafter) == []


def test_a_closed_drafter_starts_over() -> None:
    history = History([0, 1, 2, 3, 4, 5, 6, 7, 1])
    drafter = NgramSimple(1, 4)
    drafter.begin(history)
    assert propose(drafter) == [2, 3, 4, 5]
    drafter.close()
    assert propose(drafter) == [2, 3, 4, 5]
