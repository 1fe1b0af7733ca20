"""The n-gram drafts that a controller judges: the longest match, wherever it is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gguf_spec.drafters.ngram import NgramSimple
from gguf_spec.drafters.ngram_base import MAX_INDEXED, NgramDrafter
from gguf_spec.drafters.ngram_longest import LongestMatch
from gguf_spec.drafters.ngram_map import NgramMapK, NgramMapK4V
from gguf_spec.drafters.ngram_mod import NgramMod
from gguf_spec.drafters.ngram_registry import AUTO_SIZES, make_ngram, ngram_ceiling
from gguf_spec.drafters.pool import LONGEST_MATCH, Pool
from gguf_spec.history import History
from gguf_spec.profile_schema import Spec
from gguf_spec.sampling import Sampler, SamplingParams

SAMPLER = Sampler(SamplingParams())


def drafted(drafter: NgramDrafter, text: list[int], limit: int = 8) -> tuple[list[int], int]:
    drafter.begin(History(text))
    draft = drafter.draft(limit, SAMPLER)
    return list(draft.tokens), draft.match


def test_the_longest_match_wins_over_the_latest() -> None:
    text = [1, 2, 3, 4, 5, 6, 9, 9, 4, 5, 7, 8, 1, 2, 3, 4, 5]
    assert drafted(LongestMatch(2, 3), text)[0] == [6, 9, 9]
    assert drafted(LongestMatch(2, 3), text[6:]) == ([7, 8, 1], 2)


def test_of_equal_matches_the_latest_is_taken() -> None:
    assert drafted(LongestMatch(2, 1), [1, 2, 3, 1, 2, 4, 8, 1, 2])[0] == [4]


@pytest.mark.parametrize(
    ("followers", "draft", "match"),
    [
        ([7], 7, 2),
        ([7, 7], 7, 7),
        ([7, 7, 7], 7, 8),
        ([7, 7, 7, 7], 7, 16),
        ([7, 8], 8, 1),  # the latest, which is one of two
        ([7, 7, 8], 8, 1),
        ([8, 7, 7], 7, 2),
        ([8, 7, 7, 7, 7, 7, 7, 7, 7], 7, 16),  # the first is too long ago
    ],
)
def test_hits_count_beside_the_match(followers: list[int], draft: int, match: int) -> None:
    text = [token for i, next_one in enumerate(followers) for token in (1, 2, next_one, 100 + i)]
    assert drafted(LongestMatch(2, 1), [*text, 1, 2]) == ([draft], match)


def test_hits_do_not_make_a_long_match_shorter() -> None:
    copied = list(range(10, 40))
    assert drafted(LongestMatch(2, 1), [*copied, 50, *copied, 51, *copied]) == ([51], 30 // 2)
    assert drafted(LongestMatch(2, 1), [*copied, 50, *copied, 50, *copied]) == ([50], 61)


def test_an_answer_that_begins_as_a_passage_is_believed_to_copy_it() -> None:
    def match(before: list[int], answer: list[int]) -> int:
        drafter = LongestMatch(2, 3)
        history = History([7, 8, 9, *range(10, 40), *before])
        drafter.begin(history)
        history.extend(answer)
        return drafter.draft(3, SAMPLER).match

    assert match([50], [10, 11]) == 2, "too short to say"
    assert match([50], [10, 11, 12]) == 3 + 8
    assert match([8, 9], [10, 11, 12]) == 5 + 8, "what stands before a passage may stand here too"
    assert match([7, 8, 9], [10, 11, 12]) == 6, "so do other answers begin"
    assert match([50], [51, 10, 11, 12]) == 3, "not from the first token on"
    assert match([50], [10, 11, 12, 60, 20, 21, 22]) == 3, "nor any longer"


def test_a_text_that_repeats_itself_is_repeated_on() -> None:
    tokens, match = drafted(LongestMatch(2, 8), [7, 1, 2, 3, 1, 2, 3])
    assert tokens == [1, 2, 3, 1, 2, 3, 1, 2]
    assert match == 3


def test_one_token_that_differs_does_not_end_a_long_match() -> None:
    copied = list(range(10, 40))
    text = [*copied, 90, 91, 92, 1, *copied[:20], 99]
    tokens, match = drafted(LongestMatch(2, 3), [*text, *copied[21:23]])
    assert tokens == copied[23:26]
    assert match > 2
    short = [*copied, 90, 91, 92, 1, *copied[:12], 99, *copied[13:15]]
    assert drafted(LongestMatch(2, 3), short) == (copied[15:18], 2), "too little agrees before it"
    drafter = LongestMatch(2, 3)
    history = History(text[:-1])
    drafter.begin(history)
    assert list(drafter.draft(3, SAMPLER).tokens) == copied[20:23]
    history.extend([99])
    drafter.accept(0)
    draft = drafter.draft(3, SAMPLER)
    assert (list(draft.tokens), draft.match > 0) == (copied[21:24], True), "behind the other token"


def test_nothing_known_nothing_offered() -> None:
    for text in ([], [1], [1, 2], [1, 2, 3, 4, 5]):
        assert drafted(LongestMatch(2, 4), text) == ([], 0)


@given(st.lists(st.integers(0, 3), max_size=120), st.integers(1, 6))
def test_asked_in_every_round_or_once_the_match_is_true(text: list[int], step: int) -> None:
    """What it says of its match holds: so many tokens before the draft agree with some place that
    goes on as the draft does, or several do. Followed from round to round it is no shorter
    than looked up anew."""
    drafter, history = LongestMatch(2, 6), History()
    drafter.begin(history)
    for begin in range(0, len(text), step):
        history.extend(text[begin : begin + step])
        draft = drafter.draft(6, SAMPLER)
        drafter.accept(0)
        said = history[:]
        fresh = drafted(LongestMatch(2, 6), said)
        assert bool(draft.tokens) >= bool(fresh[0])
        assert draft.match <= max(LONGEST_MATCH, len(said))
        if draft.tokens and draft.match >= 16:

            def places(n: int, said: list[int] = said, next_one: int = draft.tokens[0]) -> int:
                return sum(
                    said[place - n : place] == said[-n:] and said[place] == next_one
                    for place in range(n, len(said))
                )

            assert places(8) or places(2) >= 4


def test_a_history_that_shrank_is_read_again() -> None:
    drafter, history = LongestMatch(2, 3), History([1, 2, 3, 4, 1, 2])
    drafter.begin(history)
    assert list(drafter.draft(3, SAMPLER).tokens) == [3, 4, 1]
    history.truncate(2)
    history.extend([5, 6, 1, 2])
    assert list(drafter.draft(3, SAMPLER).tokens) == [5, 6, 1]


def test_a_long_history_is_indexed_in_part() -> None:
    drafter = LongestMatch(2, 3, max_indexed=8)
    text = [1, 2, 3, *range(10, 31), 4, 5, 6, 7, 4, 5]
    assert drafted(drafter, text) == ([6, 7, 4], 2)
    assert drafted(LongestMatch(2, 3, max_indexed=8), [*text, 1, 2]) == ([], 0)
    assert drafted(LongestMatch(2, 3, max_indexed=MAX_INDEXED), [*text, 1, 2])[0] == [3, 10, 11]


def test_the_pool_competes_by_its_match() -> None:
    pool = Pool()
    pool.add([8, 1, 2, 3, 4, 5, 6])
    pool.add([9, 4, 7, 7])
    assert drafted(LongestMatch(2, 3, pool), [3, 4, 8, 8, 1, 2, 3, 4]) == ([5, 6], 5)
    assert drafted(LongestMatch(2, 3, pool), [0, 3, 4, 8, 0, 3, 4])[1] == 3
    assert drafted(LongestMatch(2, 3, pool), [1, 1, 9, 4]) == ([7, 7], 2)


def test_the_match_in_a_pool_ends_where_its_text_begins() -> None:
    pool = Pool()
    pool.add([1, 2, 3])
    pool.add([4, 5, 6])
    assert pool.longest([2, 3, 4, 5], 2, 4, 8) == ([6], 2)
    assert pool.longest([7, 4, 5], 2, 4, 8) == ([6], 2)
    assert pool.longest([1, 2], 2, 4, 8) == ([3], 2)
    assert pool.longest([5, 6], 2, 4, 8) == ([], 0)
    assert Pool().longest([5, 6], 2, 4, 8) == ([], 0)


@pytest.mark.parametrize("kind", [NgramSimple, NgramMapK, NgramMapK4V])
def test_the_other_types_say_their_match_where_somebody_wants_it(kind: type) -> None:
    text = [*range(50, 80), *range(5, 40), *range(57, 62)]
    for trusting, match in ((True, 0), (False, 5)):
        tokens, said = drafted(kind(2, 4, trusting=trusting), text)
        assert (tokens[:2], said) == ([62, 63], match)


def test_the_chain_says_the_match_of_its_first_token() -> None:
    text = [*range(50, 80), *range(5, 40), *range(57, 62)]
    assert drafted(NgramMod(2, 2, 4, trusting=False), text) == ([62, 63, 64, 65], 5)


def test_who_is_judged_holds_nothing_back() -> None:
    """A key that was wrong five times is offered a sixth time, in full length."""
    for trusting in (True, False):
        drafter = NgramMapK(2, 4, trusting=trusting)
        history = History([1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2])
        drafter.begin(history)
        lengths = []
        for i in range(5):
            lengths.append(len(drafter.draft(4, SAMPLER).tokens))
            history.extend([30 + i, 40 + i, 50 + i, 60 + i, 70 + i, 1, 2])
            drafter.accept(0)
        assert (lengths == [4] * 5) is not trusting, lengths


def test_auto_has_sizes_of_its_own_unless_the_profile_sets_them() -> None:
    auto = make_ngram("ngram-simple", Spec())
    assert isinstance(auto, LongestMatch)
    assert (auto.size_n, auto.size_m) == AUTO_SIZES
    assert ngram_ceiling("ngram-simple", Spec()) == AUTO_SIZES[1]
    own = Spec.model_validate({"ngram-simple": {"size_n": 5, "size_m": 20}})
    auto = make_ngram("ngram-simple", own)
    assert isinstance(auto, LongestMatch)
    assert (auto.size_n, auto.size_m, ngram_ceiling("ngram-simple", own)) == (5, 20, 20)


@pytest.mark.parametrize("values", [{"types": ["ngram-simple"]}, {"control": False}])
def test_named_types_and_fixed_drafts_are_those_of_llama_cpp(values: dict[str, object]) -> None:
    spec = Spec.model_validate(values)
    made = make_ngram("ngram-simple", spec)
    assert isinstance(made, NgramSimple)
    assert (made.size_n, made.size_m, ngram_ceiling("ngram-simple", spec)) == (12, 48, 48)


def test_a_draft_is_as_long_as_its_match_lets_hope() -> None:
    """What is behind four times as many tokens as agree hardly ever stands."""
    long = list(range(100, 200))
    apart = [7, 7, 7]

    def length(match: int, pool: Pool | None = None) -> int:
        drafter = LongestMatch(2, 47, pool)
        before = [] if pool else [*long, *apart]
        return len(drafted(drafter, [*before, *long[20 - match : 20]], 64)[0])

    pool = Pool()
    pool.add(long)
    for texts in (None, pool):
        assert [length(match, texts) for match in (2, 3, 9, 11, 12)] == [8, 12, 36, 44, 47]
