"""Every n-gram drafter against a slow reference, draft by draft, with all that makes it learn."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gguf_spec.drafters.ngram import NgramSimple
from gguf_spec.drafters.ngram_base import NgramDrafter
from gguf_spec.drafters.ngram_cache import NgramCache
from gguf_spec.drafters.ngram_map import NgramMapK, NgramMapK4V
from gguf_spec.drafters.ngram_mod import NgramMod
from gguf_spec.drafters.pool import Pool
from gguf_spec.history import History
from gguf_spec.sampling import Sampler, SamplingParams
from tests.drafters.ngram_reference import Reference, Table, random_text

SAMPLER = Sampler(SamplingParams())
MAKERS: dict[str, Callable[..., NgramDrafter]] = {
    "ngram-simple": NgramSimple,
    "ngram-map-k": NgramMapK,
    "ngram-map-k4v": NgramMapK4V,
    "ngram-mod": NgramMod,
    "ngram-cache": NgramCache,
}
KINDS = sorted(MAKERS)


def sizes(r: random.Random, kind: str) -> tuple[int, ...]:
    if kind == "ngram-simple":
        return r.randrange(1, 6), r.randrange(1, 12)
    if kind == "ngram-mod":
        return r.randrange(1, 6), r.randrange(0, 9), r.randrange(0, 15)
    if kind == "ngram-cache":
        return (r.randrange(1, 10),)
    return r.randrange(1, 5), r.randrange(1, 12), r.randrange(1, 4)


def table(r: random.Random) -> Table:
    kinds = [0, 1, 3, 4, 5, 6, 7, 256]
    return {
        tuple(r.choices(kinds, k=r.randrange(1, 5))): {
            r.choice(kinds): r.randrange(1, 5) for _ in range(r.randrange(1, 4))
        }
        for _ in range(r.randrange(30))
    }


def pair(
    r: random.Random, kind: str, history: History, *, pooled: bool = False
) -> tuple[NgramDrafter, Reference]:
    """A drafter that has begun on ``history``, and its reference."""
    parameters = sizes(r, kind)
    reference = Reference(kind, parameters)
    pool = None
    options = {}
    if pooled:
        pool = Pool()
        for _ in range(r.randrange(4)):
            pool.add(random_text(r))
        reference.texts = pool.texts
        if r.random() < 0.5:
            reference.predicted = random_text(r, 4)[:60]
            pool.predict(reference.predicted)
    if kind == "ngram-cache" and r.random() < 0.6:
        reference.static, reference.dynamic = table(r), table(r)
        options = {
            name: {array("i", key).tobytes(): counts for key, counts in one.items()}
            for name, one in (("static", reference.static), ("dynamic", reference.dynamic))
        }
    drafter = MAKERS[kind](*parameters, pool=pool, **options)
    drafter.begin(history)
    reference.begin(list(history))
    return drafter, reference


def rounds(
    r: random.Random, drafter: NgramDrafter, reference: Reference, history: History, n: int
) -> int:
    """``n`` rounds as the engine makes them; the target agrees with drafts for a while, or not."""
    n_drafted = 0
    for _ in range(n):
        limit = r.choice([1, 3, 8, 100])
        if r.random() < 0.85:  # else somebody else is asked
            wanted = reference.draft(list(history), limit)
            draft = drafter.draft(limit, SAMPLER)
            assert draft.source == reference.kind
            assert list(draft.tokens) == wanted
            n_drafted += len(wanted)
            judged = wanted[: r.choice([0, 2, 100])] if r.random() < 0.2 else wanted
        else:
            judged = []
        n_accepted = r.choice([0, 0, len(judged), r.randint(0, len(judged))])
        next_token = r.choice(list(history[-30:]) or [0])
        if n_accepted < len(judged) and judged[n_accepted] == next_token:
            n_accepted += 1
            next_token = 99
        history.extend([*judged[:n_accepted], next_token])
        drafter.accept(n_accepted)
        reference.accept(list(history))
    return n_drafted


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pooled", [False, True])
def test_drafts_equal_the_reference(kind: str, pooled: bool) -> None:
    n_drafted = 0

    @settings(max_examples=60, deadline=None, derandomize=True)
    @given(st.integers(0, 2**32))
    def check(seed: int) -> None:
        nonlocal n_drafted
        r = random.Random(seed)
        history = History(random_text(r))
        drafter, reference = pair(r, kind, history, pooled=pooled)
        n_drafted += rounds(r, drafter, reference, history, 25)
        if r.random() < 0.5:  # the next completion goes on from here
            history.extend(random_text(r, 3))
            drafter.begin(history)
            reference.begin(list(history))
            rounds(r, drafter, reference, history, 10)

    check()
    assert n_drafted > 500


@pytest.mark.parametrize("kind", KINDS)
def test_a_shorter_history_is_drafted_for_as_by_a_fresh_drafter(kind: str) -> None:
    @settings(max_examples=40, deadline=None, derandomize=True)
    @given(st.integers(0, 2**32), st.booleans(), st.booleans())
    def check(seed: int, same_object: bool, begins: bool) -> None:
        r = random.Random(seed)
        history = History([5, *random_text(r), 6])
        drafter, reference = pair(r, kind, history)
        rounds(r, drafter, reference, history, 15)
        kept = r.randrange(len(history))
        if same_object:
            history.truncate(kept)
            # As long as before when the drafter looks again: the length gives nothing away.
            history.extend(random_text(r))
        else:
            history = History([*history[:kept], *random_text(r)])
        if begins or not same_object:
            drafter.begin(history)
        reference.forget()
        reference.begin(list(history))
        rounds(r, drafter, reference, history, 15)

    check()


@pytest.mark.parametrize("kind", KINDS)
def test_growing_equals_rebuilt_past_the_bound(kind: str) -> None:
    """What is known of a long history depends on its length, not on when the drafter was asked."""
    r = random.Random(kind)
    n_drafted = 0
    for _ in range(6):
        parameters = sizes(r, kind)
        history = History()
        growing = MAKERS[kind](*parameters, max_indexed=64)
        growing.begin(history)
        text = [r.randrange(3) for _ in range(40)] * 5
        for i, token in enumerate(text):
            history.extend([token])
            tokens = growing.draft(100, SAMPLER).tokens
            n_drafted += len(tokens)
            if i % 7 == 0:
                rebuilt = MAKERS[kind](*parameters, max_indexed=64)
                rebuilt.begin(history)
                assert rebuilt.draft(100, SAMPLER).tokens == tokens
        if kind != "ngram-cache":
            index = growing._index  # type: ignore[attr-defined]
            assert len(index._latest) <= len(index._previous) <= 64
    assert n_drafted > 100


@pytest.mark.parametrize("kind", KINDS)
def test_a_closed_drafter_starts_over(kind: str) -> None:
    history = History([*range(70)] * 2)
    drafter = MAKERS[kind]()
    drafter.begin(history)
    assert list(drafter.draft(8, SAMPLER).tokens) == [*range(8)]
    drafter.close()
    assert list(drafter.draft(8, SAMPLER).tokens) == [*range(8)]
