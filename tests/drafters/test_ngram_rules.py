"""What the n-gram drafters learn, by worked examples: each was a mistake somewhere."""

from __future__ import annotations

import pytest

from gguf_spec.drafters.ngram_base import NgramDrafter, Trust
from gguf_spec.drafters.ngram_cache import NgramCache
from gguf_spec.drafters.ngram_map import NgramMapK, NgramMapK4V
from gguf_spec.drafters.ngram_mod import NgramMod
from gguf_spec.drafters.ngram_registry import make_ngram, ngram_ceiling
from gguf_spec.drafters.pool import Pool
from gguf_spec.errors import InputError
from gguf_spec.history import History
from gguf_spec.profile_schema import Spec
from gguf_spec.sampling import Sampler, SamplingParams

SAMPLER = Sampler(SamplingParams())
KEY = [1, 2]
VALUE = [*range(10, 22)]


def propose(drafter: NgramDrafter, limit: int = 1000) -> list[int]:
    return list(drafter.draft(limit, SAMPLER).tokens)


def emit(drafter: NgramDrafter, history: History, tokens: list[int]) -> None:
    """A round ended with ``tokens``, the last of them the target's own."""
    history.extend(tokens)
    drafter.accept(len(tokens) - 1)


def key_again(drafter: NgramDrafter, history: History, limit: int = 1000) -> list[int]:
    """The key and its value are said three times more while nobody drafts; then a draft."""
    for token in [90, *[*KEY, *VALUE, 3, 4, 5] * 3, *KEY]:
        emit(drafter, history, [token])
    return propose(drafter, limit)


@pytest.mark.parametrize("make", [NgramMapK, NgramMapK4V])
def test_a_failed_key_rests_and_recovers(make: type[NgramMapK]) -> None:
    history = History([0, *KEY, *VALUE, 3, 4, 5, *KEY])
    drafter = make(2, 12)
    drafter.begin(history)
    assert propose(drafter) == VALUE
    emit(drafter, history, [99])  # wrong from the first token on
    assert key_again(drafter, history) == []  # it rests once
    assert key_again(drafter, history) == VALUE[:4]
    emit(drafter, history, [99])
    assert [key_again(drafter, history) for _ in range(3)] == [[], [], VALUE[:4]]
    emit(drafter, history, [*VALUE[:4], 99])  # right to the end, then something unknown
    assert key_again(drafter, history) == VALUE[:8]
    emit(drafter, history, [*VALUE[:8], 99])
    assert key_again(drafter, history) == VALUE
    emit(drafter, history, [*VALUE[:5], 99])  # wrong after five
    assert key_again(drafter, history) == VALUE[:10]


def test_a_draft_cut_by_others_is_not_a_failure() -> None:
    history = History([0, *KEY, *VALUE, 3, 4, 5, *KEY])
    drafter = NgramMapK(2, 12)
    drafter.begin(history)
    assert propose(drafter, limit=3) == VALUE[:3]
    emit(drafter, history, [*VALUE[:3], 99])  # all that was offered; the rest was not judged
    assert key_again(drafter, history) == VALUE
    emit(drafter, history, VALUE[:3])  # cut before VALUE[2], an end token: the target chose it
    assert key_again(drafter, history) == VALUE
    emit(drafter, history, VALUE[:1])  # no room: dropped, and the target chose its first token
    assert key_again(drafter, history) == VALUE


def test_another_drafters_acceptance_is_not_ours() -> None:
    history = History([0, *KEY, *VALUE, 3, 4, 5, *KEY])
    drafter = NgramMapK(2, 12)
    drafter.begin(history)
    propose(drafter)
    emit(drafter, history, [70, 71, 72, 73])  # passed over; three tokens of another were right
    assert key_again(drafter, history) == []
    emit(drafter, history, [70, 71, 72])  # not even asked: nothing changes
    assert key_again(drafter, history) == VALUE[:4]


@pytest.mark.parametrize("make", [NgramMapK, NgramMapK4V])
def test_min_hits(make: type[NgramMapK]) -> None:
    once = [*KEY, 30, 31, 32, 33]
    drafter = make(2, 4, min_hits=3)
    drafter.begin(History([0, *once, *once, 5, 6, *KEY]))
    assert propose(drafter) == []
    drafter.begin(History([0, *once, *once, *once, 5, 6, *KEY]))
    assert propose(drafter) == [30, 31, 32, 33]


def test_k4v_drafts_the_majority_and_counts_occurrences_once() -> None:
    a, b = [*KEY, 30, 31, 32], [*KEY, 40, 41, 42]
    history = History([0, *a, *a, *b, 5, 6, *KEY])
    drafter = NgramMapK4V(2, 3)
    drafter.begin(history)
    # Two to one. llama.cpp would find this, and draft what followed the latest occurrence: b.
    assert propose(drafter) == [30, 31, 32]
    for _ in range(5):  # asking again is no occurrence
        assert propose(drafter) == [30, 31, 32]
    drafter.begin(History([0, *a, *b, 5, 6, *KEY]))
    assert propose(drafter) == []  # one to one is no majority
    latest = NgramMapK(2, 3)
    latest.begin(history)
    assert propose(latest) == [40, 41, 42]


def test_a_history_that_shrank_is_no_reason_to_stop() -> None:
    history = History([0, *KEY, *VALUE, 3, 4, 5, *KEY])
    drafter = NgramMapK4V(2, 12)
    drafter.begin(history)
    assert propose(drafter) == VALUE
    history.truncate(4)
    assert propose(drafter) == []
    drafter.accept(0)


def test_mod_needs_n_min_before_it_is_cut_to_the_limit() -> None:
    history = History([1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2])
    for n_min, wanted in ((9, [3, 4, 5]), (64, [3, 4, 5])):  # the chain closes: it has no end
        drafter = NgramMod(2, n_min, 64)
        drafter.begin(history)
        assert propose(drafter, limit=3) == wanted
    broken = History([1, 2, 3, 4, 5, 8, 0, 1, 2, 3, 4, 9, 1, 2])
    drafter = NgramMod(3, 1, 64)
    drafter.begin(broken)
    assert propose(drafter) == []
    broken.extend([3])
    assert len(propose(drafter)) == 64
    assert propose(drafter, limit=2) == [4, 9]


def test_mod_forgets_after_five_bad_rounds_and_learns_again() -> None:
    history = History([*range(1, 9)] * 3)
    drafter = NgramMod(2, 0, 8)
    drafter.begin(history)

    def back(n: int) -> None:  # to where the table is known to say something
        for token in (7, 8)[-n:]:
            emit(drafter, history, [token])

    for i in range(5):
        assert propose(drafter), i
        emit(drafter, history, [50 + i])
        back(2)
    assert propose(drafter) == []  # everything is forgotten, and the last tokens are not enough
    for token in (60, 61, 62, 60, 61):
        emit(drafter, history, [token])
    assert propose(drafter)[0] == 62  # what came since is known
    drafter.begin(history)
    history.extend([1, 2])
    assert propose(drafter)[:2] == [3, 4]  # the next completion learns from all of it


def test_mod_does_not_blame_the_limit() -> None:
    history = History([*range(1, 9)] * 3)
    drafter = NgramMod(2, 0, 8)
    drafter.begin(history)
    for i in range(12):  # one of one token was right, of eight that might have been offered
        token = history[-8]
        assert propose(drafter, limit=1) == [token], i
        emit(drafter, history, [token])


def test_cache_counts_across_rounds() -> None:
    drafter = NgramCache()
    history = History([1])
    drafter.begin(history)
    for token in [2, 3, 4, 5, 1, 2, 3]:  # one new token in every round
        propose(drafter)
        emit(drafter, history, [token])
    assert propose(drafter)[:4] == [4, 5, 1, 2]


def test_cache_thresholds() -> None:
    # 3 followed 2 twice of three times (66 %): enough for a unigram; of 1 2 it was one of two.
    drafter = NgramCache(1)
    drafter.begin(History([2, 3, 2, 3, 2, 4, 8, 2]))
    assert propose(drafter) == [3]
    drafter.begin(History([2, 3, 2, 4, 8, 2]))
    assert propose(drafter) == []  # one of two
    # Earlier text is trusted less: a unigram has to be seen four times.
    pool = Pool()
    pooled = NgramCache(1, pool)
    pool.add([2, 3, 2, 3, 2, 3])
    pooled.begin(History([7, 2]))
    assert propose(pooled) == []
    pool.add([2, 3])
    assert propose(pooled) == [3]


def test_trust_is_lost_slowly_and_never_for_good() -> None:
    trust = Trust(48, 16)
    asked = 0
    for _ in range(400):
        if trust.ready():
            asked += 1
            trust.learn(trust.length, 0, True)
    assert trust.length == 4
    assert asked == 6 + (400 - 63 - 6) // 33 + 1
    assert Trust(3).length == 3
    small = Trust(3)
    small.learn(3, 0, True)
    assert small.length == 3


def test_registry() -> None:
    spec = Spec.model_validate(
        {
            "ngram-simple": {"size_n": 3, "size_m": 5},
            "ngram-map-k": {"size_n": 4, "size_m": 6, "min_hits": 2},
            "ngram-mod": {"n_match": 5, "n_min": 2, "n_max": 9},
            "ngram-cache": {"n_draft": 4},
        }
    )
    ceilings = {
        "ngram-simple": 5,
        "ngram-map-k": 6,
        "ngram-map-k4v": 48,
        "ngram-mod": 9,
        "ngram-cache": 4,
    }
    pool = Pool()
    pool.predict([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11])
    for kind, ceiling in ceilings.items():
        drafter = make_ngram(kind, spec, pool)
        assert drafter.spec_type == kind
        assert ngram_ceiling(kind, spec) == ceiling
        drafter.begin(History([5]))
        assert len(drafter.draft(100, SAMPLER).tokens) == min(ceiling, 11)
    made = make_ngram("ngram-map-k", spec, None)
    assert isinstance(made, NgramMapK)
    assert (made.size_n, made.size_m, made.min_hits) == (4, 6, 2)
    for call in (lambda: make_ngram("draft-mtp", spec), lambda: ngram_ceiling("ngram", spec)):
        with pytest.raises(InputError, match="no n-gram type"):
            call()
